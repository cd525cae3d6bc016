package image

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// A bzImage unpacks itself in the guest. Under emulation that costs about 0.3 s of a 2 s boot (Debian's cloud kernel,
// QEMU 7.2, q35, TCG: 2.02 s packed and 1.69 s unpacked, from the start of QEMU to its end with an init that only
// powers off, median of 5). QEMU boots an unpacked kernel directly by its PVH entry, so we unpack it once on the host.

// errNoPVH is why a kernel is booted packed.
var errNoPVH = errors.New("kernel has no PVH entry")

// Fields of the header of a bzImage (Documentation/arch/x86/boot.rst).
const (
	bzSetupSects  = 0x1f1
	bzMagic       = 0x202 // "HdrS"
	bzVersion     = 0x206
	bzRelease     = 0x20e // offset of the release string, minus 0x200
	bzPayload     = 0x248
	bzPayloadSize = 0x24c
	bzHeaderSize  = 0x250
)

// maxVmlinux bounds an unpacked kernel.
const maxVmlinux = 1 << 30

// kernelFile is the part of a kernel file that we look at.
type kernelFile struct {
	elf     bool
	header  []byte // bzImage
	release string // as uname -r prints it, "" when the file does not tell
}

// readKernel looks at a kernel file.
func readKernel(path string) (*kernelFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	defer f.Close()
	head := make([]byte, 64<<10)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("kernel %s: %w", path, err)
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte(elf.ELFMAG)) {
		return &kernelFile{elf: true}, nil
	}
	if n < bzHeaderSize || string(head[bzMagic:bzMagic+4]) != "HdrS" {
		return nil, fmt.Errorf("%s is not a Linux kernel: neither a bzImage nor a vmlinux", path)
	}
	k := &kernelFile{header: head[:bzHeaderSize]}
	if at := int(binary.LittleEndian.Uint16(head[bzRelease:])); at != 0 && at+0x200 < n {
		text := head[at+0x200:]
		if end := bytes.IndexByte(text, 0); end >= 0 {
			if words := strings.Fields(string(text[:end])); len(words) > 0 {
				k.release = cleanText(words[0])
			}
		}
	}
	return k, nil
}

// extractVmlinux writes the vmlinux that is packed in the bzImage at path to w. The error is errNoPVH when QEMU could
// not boot it.
func extractVmlinux(ctx context.Context, path string, k *kernelFile, w *os.File) error {
	if k.elf || binary.LittleEndian.Uint16(k.header[bzVersion:]) < 0x208 {
		return errNoPVH
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	defer f.Close()
	sects := int64(k.header[bzSetupSects])
	if sects == 0 {
		sects = 4
	}
	offset := (sects+1)*512 + int64(binary.LittleEndian.Uint32(k.header[bzPayload:]))
	size := int64(binary.LittleEndian.Uint32(k.header[bzPayloadSize:]))
	if size < 8 {
		return fmt.Errorf("kernel %s has no payload", path)
	}
	payload := io.NewSectionReader(f, offset, size)
	var magic [magicLen]byte
	if _, err := payload.ReadAt(magic[:], 0); err != nil {
		return fmt.Errorf("kernel %s is truncated: %w", path, err)
	}
	c := compressionOf(magic[:])
	if c == nil {
		return fmt.Errorf("kernel %s is packed in an unknown way", path)
	}
	var src io.Reader = io.NewSectionReader(f, offset, size-4) // without the unpacked size, which kernel builds append
	if c.name == "gzip" {                                      // there it is part of the format
		src = payload
	}
	if err := c.unpack(ctx, &limitedWriter{w: w, left: maxVmlinux}, src); err != nil {
		return fmt.Errorf("kernel %s: %w", path, err)
	}
	ok, err := hasPVH(w)
	if err != nil {
		return fmt.Errorf("kernel %s: payload: %w", path, err)
	}
	if !ok {
		return errNoPVH
	}
	return nil
}

// hasPVH tells whether an ELF kernel has the note with its 32-bit entry point that QEMU starts it by.
func hasPVH(r io.ReaderAt) (bool, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return false, err
	}
	defer f.Close()
	const noteType = 18 // XEN_ELFNOTE_PHYS32_ENTRY
	for _, prog := range f.Progs {
		if prog.Type != elf.PT_NOTE || prog.Filesz > 1<<20 {
			continue
		}
		notes := make([]byte, prog.Filesz)
		if _, err := prog.ReadAt(notes, 0); err != nil {
			return false, err
		}
		for len(notes) >= 12 {
			name := uint64(f.ByteOrder.Uint32(notes))
			desc := uint64(f.ByteOrder.Uint32(notes[4:]))
			kind := f.ByteOrder.Uint32(notes[8:])
			next := 12 + (name+3)/4*4 + (desc+3)/4*4
			if next > uint64(len(notes)) {
				break
			}
			if kind == noteType && string(notes[12:12+name]) == "Xen\x00" {
				return true, nil
			}
			notes = notes[next:]
		}
	}
	return false, nil
}

// limitedWriter fails once more than left bytes were written.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errors.New("unpacked data is too large")
	}
	return l.w.Write(p)
}
