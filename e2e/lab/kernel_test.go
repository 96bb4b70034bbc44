package main

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"
)

func TestResolveModules(t *testing.T) {
	dep := `kernel/fs/9p/9p.ko: kernel/fs/fscache/fscache.ko kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko:
kernel/fs/netfs/netfs.ko.xz:
kernel/fs/fscache/fscache.ko: kernel/fs/netfs/netfs.ko
kernel/net/netfilter/ipvs/ip_vs.ko.zst: kernel/lib/libcrc32c.ko
kernel/net/sched/sch-netem.ko:
`
	index := parseModules(dep, "kernel/drivers/virtio/virtio_pci.ko\n")
	for _, test := range []struct {
		names, want []string
	}{
		{[]string{"9p"}, []string{"kernel/fs/netfs/netfs.ko", "kernel/net/9p/9pnet.ko", "kernel/fs/fscache/fscache.ko", "kernel/fs/9p/9p.ko"}},
		{[]string{"9pnet", "9p"}, []string{"kernel/net/9p/9pnet.ko", "kernel/fs/netfs/netfs.ko", "kernel/fs/fscache/fscache.ko", "kernel/fs/9p/9p.ko"}},
		{[]string{"virtio_pci"}, nil},
		{[]string{"ip-vs", "sch_netem"}, []string{"kernel/lib/libcrc32c.ko", "kernel/net/netfilter/ipvs/ip_vs.ko.zst", "kernel/net/sched/sch-netem.ko"}},
	} {
		if got, err := index.resolve(test.names...); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%v: got %v %v, want %v", test.names, got, err, test.want)
		}
	}
	if _, err := index.resolve("nosuch"); err == nil {
		t.Error("found a nonexistent module")
	}
	if got, err := parseModules(dep, "").resolve("virtio_pci"); err != nil || got != nil {
		t.Errorf("with no list of built-in modules: got %v %v", got, err)
	}
}

func TestBzImage(t *testing.T) {
	image := make([]byte, 0x1000)
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(image[0x20e:], 0x400)
	copy(image[0x600:], "6.1.0-56-amd64 (debian) #1\x00")
	image[0x1f1] = 2
	binary.LittleEndian.PutUint32(image[0x248:], 0x10)
	binary.LittleEndian.PutUint32(image[0x24c:], 11)
	copy(image[3*512+0x10:], "payload\x01\x02\x03\x04")
	if release, err := bzImageRelease("x", image); err != nil || release != "6.1.0-56-amd64" {
		t.Errorf("release %q %v", release, err)
	}
	if payload, err := bzImagePayload(image); err != nil || string(payload) != "payload" {
		t.Errorf("payload %q %v", payload, err)
	}
	for _, bad := range [][]byte{nil, make([]byte, 0x1000), image[:0x20f]} {
		if _, err := bzImageRelease("x", bad); err == nil {
			t.Errorf("%d bytes were accepted as a kernel", len(bad))
		}
	}
	binary.LittleEndian.PutUint32(image[0x24c:], 1<<30)
	if _, err := bzImagePayload(image); err == nil {
		t.Error("accepted a payload that extends beyond the file")
	}
}

func TestWriteInitramfs(t *testing.T) {
	archive, err := initramfsBytes([]initFile{{"init", 0o755, []byte("hello")}})
	if err != nil {
		t.Fatal(err)
	}
	if len(archive)%4 != 0 {
		t.Errorf("the archive has %d bytes, which is not a multiple of four", len(archive))
	}
	at := bytes.Index(archive, []byte("init\x00"))
	if at < 110 {
		t.Fatal("no init in the archive")
	}
	head := string(archive[at-110 : at])
	if want := "070701"; head[:6] != want {
		t.Errorf("magic %s, want %s", head[:6], want)
	}
	if mode, size := head[14:22], head[54:62]; mode != "000081ED" || size != "00000005" {
		t.Errorf("mode %s, size %s", mode, size)
	}
	// The header, the name and its zero byte are padded to a multiple of four.
	if data := archive[(at+5+3)&^3:]; !bytes.HasPrefix(data, []byte("hello\x00\x00\x00070701")) {
		t.Errorf("content is %q", data[:16])
	}
	if !bytes.Contains(archive, []byte("TRAILER!!!\x00")) {
		t.Error("no trailer")
	}
}

func TestKernelTrouble(t *testing.T) {
	for _, test := range []struct {
		name  string
		taint uint64
		log   string
		want  bool
	}{
		{"quiet", 0, "[1.0] IPVS: ipvs loaded.\n", false},
		{"unsigned module", 1 << 13, "", false},
		{"warning", taintWarn, "[1.0] WARNING: CPU: 1 PID: 5 at net/x.c:1\n", true},
		{"oops", taintDie, "[1.0] BUG: kernel NULL pointer dereference\n", true},
		{"log overwritten", taintWarn, "[1.0] IPVS: ipvs loaded.\n", true},
	} {
		if got := kernelTrouble(test.taint, test.log); (got != "") != test.want {
			t.Errorf("%s: %q", test.name, got)
		}
	}
}
