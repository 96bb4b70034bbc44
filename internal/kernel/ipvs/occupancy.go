package ipvs

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
)

// Occupancy is the number of IPVS connections, and the number of hash buckets of the connection table.
type Occupancy struct{ Connections, Buckets uint64 }

// ReadOccupancy reads the whole list of virtual servers, because the kernel does not report the total number of connections.
func ReadOccupancy() (Occupancy, error) {
	file, err := os.Open(procFile)
	if err != nil {
		return Occupancy{}, err
	}
	defer file.Close()
	return parseOccupancy(file)
}

func parseOccupancy(file io.Reader) (o Occupancy, err error) {
	lines := bufio.NewScanner(file)
	lines.Scan()
	_, size, _ := bytes.Cut(lines.Bytes(), []byte("(size="))
	if o.Buckets, err = strconv.ParseUint(string(bytes.TrimSuffix(size, []byte(")"))), 10, 64); err != nil {
		return Occupancy{}, fmt.Errorf("parse IPVS table: size of the connection table: %w", err)
	}
	for lines.Scan() {
		if !bytes.HasPrefix(lines.Bytes(), procDestination) {
			continue
		}
		fields := bytes.Fields(lines.Bytes())
		for _, count := range fields[max(len(fields)-2, 0):] {
			n, err := strconv.ParseUint(string(count), 10, 64)
			if err == nil { // a header line has no counts
				o.Connections += n
			}
		}
	}
	return o, lines.Err()
}
