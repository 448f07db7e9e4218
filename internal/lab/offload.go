package lab

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// struct ethtool_value of <linux/ethtool.h>.
type ethtoolValue struct {
	command uint32
	data    uint32
}

// struct ifreq of <linux/if.h> with its data member.
type interfaceRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// ETH_FLAG_TXVLAN and ETH_FLAG_RXVLAN of <linux/ethtool.h>.
const vlanOffloads = 1<<7 | 1<<8

// setOffload does what ethtool -K does, in the namespace of the thread.
func setOffload(port string, command uint32, on bool) error {
	value := ethtoolValue{command: command}
	if on {
		value.data = 1
	}
	return ethtool(port, &value)
}

// keepTags leaves VLAN tags in the frame, where XDP sees them.
func keepTags(port string) error {
	value := ethtoolValue{command: unix.ETHTOOL_GFLAGS}
	if err := ethtool(port, &value); err != nil {
		return err
	}
	value.command = unix.ETHTOOL_SFLAGS
	value.data &^= vlanOffloads
	return ethtool(port, &value)
}

func ethtool(port string, value *ethtoolValue) error {
	request := interfaceRequest{data: unsafe.Pointer(value)}
	copy(request.name[:unix.IFNAMSIZ-1], port)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return errno
	}
	return nil
}
