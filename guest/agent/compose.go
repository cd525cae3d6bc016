package agent

import (
	"msb/guest/files"
	"msb/guest/port"
	"msb/guest/tcp"
	"msb/guest/watch"
)

// newFiles and newTCP make the services. With split ports a finish may overtake the records that it counts.
func newFiles(out port.Out, split bool, actors *watch.Actors) fileService {
	if split {
		return files.New(out, files.SplitPorts(), files.Report(actors))
	}
	return files.New(out, files.Report(actors))
}

func newTCP(out port.Out, split bool) tcpService {
	if split {
		return tcp.New(out, tcp.SplitPorts())
	}
	return tcp.New(out)
}
