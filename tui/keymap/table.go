package keymap

// Groups of keys, each for one place that can have the focus.
const (
	Everywhere   = "everywhere"
	Lists        = "lists"
	Turns        = "turns"
	Reading      = "reading"
	Approval     = "approval"
	Shell        = "shell"
	ShellCommand = "shell_command"
	Files        = "files"
	Events       = "events"
	Boxes        = "boxes"
	Settings     = "settings"
	Page         = "page"
	Dialog       = "dialog"
)

// group is the keys of one place.
type group struct {
	name, title string
	typing      bool // what is typed there is text, so that no key may be a character
	bindings    []binding
}

// binding is one thing that keys do. The first key is the one that the screen's
// code knows it by.
type binding struct {
	name string
	keys []string
	help string
}

// table is every key of the screen.
var table = []group{
	{Everywhere, "everywhere", true, []binding{
		{"next_tab", []string{"tab"}, "next tab; completes, where something can be completed"},
		{"previous_tab", []string{"shift+tab"}, "tab before"},
		{"tab_1", []string{"alt+1"}, "turns"},
		{"tab_2", []string{"alt+2"}, "shell"},
		{"tab_3", []string{"alt+3"}, "files"},
		{"tab_4", []string{"alt+4"}, "events"},
		{"tab_5", []string{"alt+5"}, "boxes"},
		{"tab_6", []string{"alt+6"}, "settings"},
		{"keys", []string{"f1"}, "these keys"},
		{"leave", []string{"ctrl+]", "ctrl+q"}, "leave; sandboxes, turns and shells go on"},
		{"interrupt", []string{"ctrl+c"}, "empty what is written; twice: leave"},
	}},
	{Turns, "turns, writing", true, []binding{
		{"ask", []string{"enter"}, "ask; while a turn runs: queue"},
		{"new_line", []string{"alt+enter", "ctrl+j"}, "a new line"},
		{"earlier", []string{"up", "ctrl+p"}, "line above, or what was asked before"},
		{"later", []string{"down", "ctrl+n"}, "line below, or what was asked after"},
		{"back", []string{"esc"}, "stop the turn; else read what was said"},
		{"open", []string{"ctrl+o"}, "open or fold the last call"},
		{"page_up", []string{"pgup"}, "scroll back by a page"},
		{"page_down", []string{"pgdown"}, "scroll on by a page"},
		{"line_up", []string{"ctrl+up", "alt+up", "shift+up"}, "scroll back by a line"},
		{"line_down", []string{"ctrl+down", "alt+down", "shift+down"}, "scroll on by a line"},
		{"first", []string{"ctrl+home"}, "to the beginning"},
		{"last", []string{"ctrl+end", "end"}, "to the end, and follow it"},
		{"redraw", []string{"ctrl+l"}, "draw everything anew"},
	}},
	{Reading, "turns, reading", false, []binding{
		{"up", []string{"up", "k"}, "entry above"},
		{"down", []string{"down", "j"}, "entry below"},
		{"previous_turn", []string{"["}, "question before"},
		{"next_turn", []string{"]"}, "next question"},
		{"fold", []string{"space", "enter", "right", "left", "o"}, "open or fold"},
		{"first", []string{"home", "g"}, "to the beginning"},
		{"last", []string{"end", "G"}, "to the end, and follow it"},
		{"find", []string{"/"}, "find"},
		{"find_before", []string{"n"}, "what was found, once more, upwards"},
		{"find_after", []string{"N"}, "the same downwards"},
		{"copy", []string{"y", "c"}, "copy (OSC 52)"},
		{"whole", []string{"w"}, "all that a call printed, read back from the transcript"},
		{"write", []string{"i", "a"}, "back to writing"},
		{"back", []string{"esc"}, "back to writing"},
	}},
	{Approval, "approval", false, []binding{
		{"deny", []string{"n", "enter", "esc"}, "deny"},
		{"reason", []string{"r"}, "deny, and tell the model why"},
		{"once", []string{"y"}, "allow this once"},
		{"session", []string{"s"}, "allow exactly this for the session"},
		{"everything", []string{"e"}, "everything about it"},
		{"up", []string{"up", "k"}, "scroll back"},
		{"down", []string{"down", "j"}, "scroll on"},
		{"page_up", []string{"pgup", "ctrl+b"}, "a page back"},
		{"page_down", []string{"pgdown", "ctrl+f", "space"}, "a page on"},
		{"first", []string{"home", "g"}, "to the beginning"},
		{"last", []string{"end", "G"}, "to the end"},
	}},
	{Shell, "shell; all other keys are the program's", true, []binding{
		{"command", []string{"ctrl+]"}, "the next key is for the screen"},
		{"back", []string{"shift+pgup"}, "scroll back; Esc returns"},
	}},
	{ShellCommand, "shell, after Ctrl-]", false, []binding{
		{"new", []string{"n", "c"}, "a new shell"},
		{"end", []string{"x"}, "end this shell"},
		{"screen", []string{"f", "z"}, "the whole screen, and back"},
		{"next", []string{"tab", "]", "right"}, "next shell"},
		{"previous", []string{"shift+tab", "[", "left"}, "shell before"},
		{"back", []string{"u", "pgup", "up"}, "scroll back; Esc returns"},
		{"tab_1", []string{"1"}, "turns"},
		{"tab_2", []string{"2"}, "shell"},
		{"tab_3", []string{"3"}, "files"},
		{"tab_4", []string{"4"}, "events"},
		{"tab_5", []string{"5"}, "boxes"},
		{"tab_6", []string{"6"}, "settings"},
		{"itself", []string{"ctrl+]"}, "Ctrl-] itself, for the program"},
		{"keys", []string{"?"}, "these keys"},
		{"leave", []string{"q"}, "leave; the shells live on"},
	}},
	{Files, "files", false, []binding{
		{"open", []string{"enter", "right", "l", "space"}, "open a folder, or show a file"},
		{"up_folder", []string{"left", "h"}, "close, or the folder above"},
		{"up", []string{"up", "k"}, "up"},
		{"down", []string{"down", "j"}, "down"},
		{"page_up", []string{"pgup", "ctrl+b"}, "a page up"},
		{"page_down", []string{"pgdown", "ctrl+f"}, "a page down"},
		{"first", []string{"home", "g"}, "to the top"},
		{"last", []string{"end", "G"}, "to the bottom"},
		{"preview_down", []string{"J", "ctrl+d"}, "scroll the preview on"},
		{"preview_up", []string{"K", "ctrl+u"}, "scroll the preview back"},
		{"edit", []string{"e"}, "edit through the mount, in $VISUAL or $EDITOR"},
		{"changes", []string{"d"}, "what changed since the baseline"},
		{"upload", []string{"u"}, "copy a file or folder of this machine here"},
		{"download", []string{"s"}, "save it on this machine"},
		{"again", []string{"r"}, "read again"},
	}},
	{Events, "events", false, []binding{
		{"view", []string{"v"}, "what is shown: the session, or what crosses the protocols"},
		{"filter", []string{"/"}, "show only some"},
		{"back", []string{"esc"}, "show all"},
		{"audit", []string{"a"}, "the audit log"},
		{"up", []string{"up", "k"}, "up"},
		{"down", []string{"down", "j"}, "down"},
		{"page_up", []string{"pgup"}, "a page up"},
		{"page_down", []string{"pgdown", "space"}, "a page down"},
		{"first", []string{"home", "g"}, "to the top"},
		{"last", []string{"end", "G"}, "to the end, and follow it"},
	}},
	{Boxes, "boxes", false, []binding{
		{"open", []string{"enter"}, "open it on the screen"},
		{"new", []string{"n"}, "make a new sandbox"},
		{"start", []string{"s"}, "start"},
		{"stop", []string{"x"}, "stop, after a question"},
		{"pause", []string{"p"}, "pause, or go on"},
		{"remove", []string{"d"}, "remove, after its name was typed"},
		{"up", []string{"up", "k"}, "up"},
		{"down", []string{"down", "j"}, "down"},
		{"first", []string{"home", "g"}, "to the top"},
		{"last", []string{"end", "G"}, "to the bottom"},
		{"again", []string{"r"}, "read the list again"},
	}},
	{Settings, "settings", false, []binding{
		{"choose", []string{"enter"}, "choose a model; the tools of a server"},
		{"test", []string{"t"}, "test a model or a server"},
		{"add", []string{"n"}, "add one"},
		{"remove", []string{"d"}, "remove, after a question"},
		{"key", []string{"e"}, "type its key, which goes to the credential store"},
		{"login", []string{"o"}, "log in to a server with a browser"},
		{"up", []string{"up", "k"}, "up"},
		{"down", []string{"down", "j"}, "down"},
		{"first", []string{"home", "g"}, "to the top"},
		{"last", []string{"end", "G"}, "to the bottom"},
		{"again", []string{"r"}, "read again"},
	}},
	{Page, "a page of text", false, []binding{
		{"back", []string{"q", "esc", "enter"}, "back"},
		{"up", []string{"up", "k"}, "up"},
		{"down", []string{"down", "j"}, "down"},
		{"page_up", []string{"pgup", "ctrl+b", "b"}, "a page up"},
		{"page_down", []string{"pgdown", "ctrl+f", "space"}, "a page down"},
		{"first", []string{"home", "g"}, "to the top"},
		{"last", []string{"end", "G"}, "to the bottom"},
	}},
	{Dialog, "a question of the screen", false, []binding{
		{"back", []string{"esc"}, "back; nothing is done"},
		{"choose", []string{"enter"}, "choose; say no to a question; next field"},
		{"yes", []string{"y"}, "yes"},
		{"no", []string{"n", "q"}, "no"},
		{"up", []string{"up", "k"}, "up"},
		{"down", []string{"down", "j"}, "down"},
	}},
	{Lists, "where nothing is written", false, []binding{
		{"keys", []string{"?"}, "these keys"},
		{"tab_1", []string{"1"}, "turns"},
		{"tab_2", []string{"2"}, "shell"},
		{"tab_3", []string{"3"}, "files"},
		{"tab_4", []string{"4"}, "events"},
		{"tab_5", []string{"5"}, "boxes"},
		{"tab_6", []string{"6"}, "settings"},
		{"leave", []string{"q"}, "twice: leave"},
	}},
}

// together are the groups that can have the focus at once, so that a key may be
// in one of them only. The first one goes first.
var together = map[string][]string{
	Turns: {Everywhere}, Reading: {Everywhere, Lists}, Approval: {Everywhere}, Files: {Everywhere, Lists}, Events: {Everywhere, Lists},
	Boxes: {Everywhere, Lists}, Settings: {Everywhere, Lists}, Page: {Everywhere}, Dialog: {Everywhere}, Lists: {Everywhere},
}
