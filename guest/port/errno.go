package port

import (
	"errors"
	"fmt"
	"syscall"
)

// OSError puts err the way published agents print system errors, "No such file or directory (os error 2)", so that a
// client can get the errno back out of the text. An error without an errno is printed as it is.
func OSError(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	text := errno.Error()
	if text != "" && text[0] >= 'a' && text[0] <= 'z' {
		text = string(text[0]-'a'+'A') + text[1:]
	}
	return fmt.Sprintf("%s (os error %d)", text, int(errno))
}
