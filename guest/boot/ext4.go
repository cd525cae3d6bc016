package boot

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ext4ResizeFS is EXT4_IOC_RESIZE_FS: the new size of a mounted file system in blocks.
const ext4ResizeFS = 0x40086610

// growMounted is growExt4 for a size that the host asked for: 0 asks only how large everything is.
func growMounted(dir, device string, wanted uint64) (filesystem, deviceSize uint64, err error) {
	if wanted == 0 {
		blocks, blockSize, deviceSize, err := ext4Size(device)
		return blocks * blockSize, deviceSize, err
	}
	return growExt4(dir, device, wanted)
}

// growExt4 makes the file system mounted at dir as large as asked, at most as large as its device; 0 asks for all of
// it. It never shrinks. It returns both sizes in bytes as they are then.
func growExt4(dir, device string, wanted uint64) (filesystem, deviceSize uint64, err error) {
	blocks, blockSize, deviceSize, err := ext4Size(device)
	if err != nil {
		return 0, 0, err
	}
	filesystem = blocks * blockSize
	if wanted == 0 || wanted > deviceSize {
		wanted = deviceSize
	}
	target := wanted / blockSize
	if target <= blocks {
		return filesystem, deviceSize, nil
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return filesystem, deviceSize, err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ext4ResizeFS, uintptr(unsafe.Pointer(&target))); errno != 0 {
		return filesystem, deviceSize, fmt.Errorf("grow the file system on %s to %d bytes: %w", device, target*blockSize, errno)
	}
	return target * blockSize, deviceSize, nil
}

// ext4Size reads the superblock of a device. The kernel keeps it current there while the file system is mounted.
func ext4Size(device string) (blocks, blockSize, deviceSize uint64, err error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, 0, 0, err
	}
	defer f.Close()
	end, err := f.Seek(0, 2)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("size of %s: %w", device, err)
	}
	var sb [1024]byte
	if _, err := f.ReadAt(sb[:], 1024); err != nil {
		return 0, 0, 0, fmt.Errorf("superblock of %s: %w", device, err)
	}
	le := binary.LittleEndian
	shift := le.Uint32(sb[0x18:])
	if le.Uint16(sb[0x38:]) != 0xef53 || shift > 6 {
		return 0, 0, 0, fmt.Errorf("%s holds no ext4 file system", device)
	}
	blocks = uint64(le.Uint32(sb[0x04:]))
	if le.Uint32(sb[0x60:])&0x80 != 0 { // 64bit
		blocks |= uint64(le.Uint32(sb[0x150:])) << 32
	}
	return blocks, 1024 << shift, uint64(end), nil
}
