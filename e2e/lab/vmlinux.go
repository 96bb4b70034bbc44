package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// bootImage returns the file that QEMU should boot: the kernel's ELF file if QEMU can enter it, otherwise the
// bzImage. An emulated CPU takes about 3 s on each boot to decompress a bzImage. The host does it only once.
func bootImage(k kernel) string {
	path, err := uncompressedImage(k)
	if err != nil {
		return k.image
	}
	return path
}

func uncompressedImage(k kernel) (string, error) {
	info, err := os.Stat(k.image)
	if err != nil {
		return "", err
	}
	dir, err := cacheDir("vmlinux")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%d-%d", k.release, info.Size(), info.ModTime().Unix()))
	return path, withLock("vmlinux", func() error {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		image, err := os.ReadFile(k.image)
		if err != nil {
			return err
		}
		vmlinux, err := decompressKernel(image)
		if err != nil {
			return err
		}
		if !hasPVHEntry(vmlinux) {
			return errors.New("no PVH entry")
		}
		if err := os.WriteFile(path+".unfinished", vmlinux, 0o644); err != nil {
			return err
		}
		return os.Rename(path+".unfinished", path)
	})
}

// decompressKernel extracts the ELF kernel from a bzImage. Documentation/arch/x86/boot.rst of the kernel describes
// the header.
func decompressKernel(image []byte) ([]byte, error) {
	payload, err := bzImagePayload(image)
	if err != nil {
		return nil, err
	}
	for _, c := range []struct {
		magic string
		args  []string
	}{
		{"\xfd7zXZ\x00", []string{"xz", "-dc", "--single-stream"}},
		{"\x28\xb5\x2f\xfd", []string{"zstd", "-dcq"}},
		{"\x1f\x8b", []string{"gzip", "-dcq"}},
	} {
		if !bytes.HasPrefix(payload, []byte(c.magic)) {
			continue
		}
		cmd := exec.Command(c.args[0], c.args[1:]...)
		cmd.Stdin = bytes.NewReader(payload)
		return cmd.Output()
	}
	return nil, errors.New("unknown compression")
}

func bzImagePayload(image []byte) ([]byte, error) {
	if len(image) < 0x250 || string(image[0x202:0x206]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	setupSectors := int(image[0x1f1])
	offset := (setupSectors+1)*512 + int(binary.LittleEndian.Uint32(image[0x248:]))
	length := int(binary.LittleEndian.Uint32(image[0x24c:]))
	// The last four bytes are the uncompressed size. Decompressors would reject them as trailing garbage.
	end := offset + length - 4
	if offset < 0 || end > len(image) || end < offset {
		return nil, errors.New("payload out of range")
	}
	return image[offset:end], nil
}

// hasPVHEntry reports whether QEMU can enter the ELF file, which needs the note XEN_ELFNOTE_PHYS32_ENTRY.
func hasPVHEntry(vmlinux []byte) bool {
	const physicalEntry = 18
	file, err := elf.NewFile(bytes.NewReader(vmlinux))
	if err != nil {
		return false
	}
	section := file.Section(".notes")
	if section == nil {
		return false
	}
	notes, err := section.Data()
	if err != nil {
		return false
	}
	for len(notes) >= 12 {
		nameSize := int(binary.LittleEndian.Uint32(notes))
		dataSize := int(binary.LittleEndian.Uint32(notes[4:]))
		kind := binary.LittleEndian.Uint32(notes[8:])
		next := 12 + align4(nameSize) + align4(dataSize)
		if next > len(notes) {
			return false
		}
		if kind == physicalEntry && string(notes[12:12+nameSize]) == "Xen\x00" {
			return true
		}
		notes = notes[next:]
	}
	return false
}

func align4(n int) int { return (n + 3) &^ 3 }
