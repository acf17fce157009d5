package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
)

// A file has a header and two slots of the same size. A slot holds a record: its checksum, its length, its number, its body. The header's mark says which slot
// counts. A write fills the other slot and then sets the mark, one byte, which cannot be half written: whoever is killed
// meanwhile leaves either the old record or the new one. That the mark is apart tells a write that was not finished from a record that was damaged later:
// going back to the record before it would give a lock to a second owner.
const (
	headerSize = 16
	recordSize = 16 // without the body
	minSize    = 1024
	maxSize    = 4 << 20 // there is room for the longest owners of 6,000 who wait

	signature = "dlock 1\n"

	markNone = 'e' // no record was ever finished
	markEven = 'A' // record numbers are even in the first slot
	markOdd  = 'z' // and odd in the second
)

var (
	errSize      = errors.New("its size is not that of a lock's file")
	errTooLarge  = fmt.Errorf("a lock's file has at most %d bytes", maxSize)
	errSignature = errors.New("it is not a lock's file")
	errOtherKey  = errors.New("it is about another key")
	errMark      = errors.New("its mark is damaged")
	errRecord    = errors.New("its record is damaged")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// slotSize is how long the slots of a file are.
func slotSize(fileSize int) int { return (fileSize - headerSize) / 2 }

// sizeFor returns the size of a file whose slots have room for a body.
func sizeFor(body int) int {
	return max(minSize, 1<<bits.Len(uint(2*(recordSize+body)+headerSize-1)))
}

// nextNumber returns the number of the record after this one, of the other parity and never 0,
// which is none: a forged record may have the last number there is.
func nextNumber(seq uint64) uint64 {
	if seq == math.MaxUint64 {
		return 2
	}
	return seq + 1
}

// slotAt returns where the record with this number goes.
func slotAt(seq uint64, fileSize int) int { return headerSize + int(seq&1)*slotSize(fileSize) }

func markOf(seq uint64) byte {
	if seq&1 == 0 {
		return markEven
	}
	return markOdd
}

// parse returns the record of a file that counts, or number 0 if there was never one. It errs when the file is damaged.
func parse(data []byte) (seq uint64, body []byte, err error) {
	switch {
	case len(data) == 0:
		return 0, nil, nil
	case len(data) < minSize || len(data)&(len(data)-1) != 0:
		return 0, nil, errSize
	case blank(data[headerSize:]): // killed before the first record
		return 0, nil, nil
	case string(data[:len(signature)]) != signature || !blank(data[len(signature)+1:headerSize]):
		return 0, nil, errSignature
	}
	first, second := data[headerSize:headerSize+slotSize(len(data))], data[headerSize+slotSize(len(data)):]
	switch data[len(signature)] {
	case markNone:
		if !blank(first) { // the first record goes to the second slot
			return 0, nil, errMark
		}
		return 0, nil, nil
	case markEven:
		return record(first, 0)
	case markOdd:
		return record(second, 1)
	}
	return 0, nil, errMark
}

// record reads a slot, whose records have numbers of one parity.
func record(slot []byte, parity uint64) (uint64, []byte, error) {
	sum, n := binary.LittleEndian.Uint32(slot), binary.LittleEndian.Uint32(slot[4:])
	seq := binary.LittleEndian.Uint64(slot[8:])
	if int64(n) > int64(len(slot)-recordSize) {
		return 0, nil, errRecord
	}
	end := recordSize + int(n)
	if crc32.Checksum(slot[4:end], castagnoli) != sum || seq == 0 || seq&1 != parity {
		return 0, nil, errRecord
	}
	return seq, slot[recordSize:end], nil
}

// seal fills in the head of a record, for whose body the caller has left room in front.
func seal(b []byte, seq uint64) {
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-recordSize))
	binary.LittleEndian.PutUint64(b[8:], seq)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
}

// header returns the first bytes of a file.
func header(mark byte) []byte {
	b := make([]byte, headerSize)
	copy(b, signature)
	b[len(signature)] = mark
	return b
}

// blank reports whether all bytes are zero: the first one is, and each is like the one before it.
func blank(b []byte) bool { return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }
