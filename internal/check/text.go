package check

import (
	"fmt"
	"io"
	"strings"
)

// columns is the width of the terminal that an operator has at least.
const columns = 80

// Write shows the report as text, the worst last, where a terminal stops. What is
// as it should be is shown only if all is asked for.
func (r *Report) Write(w io.Writer, all bool) error {
	var text strings.Builder
	var before Finding
	for _, f := range r.Findings {
		if f.Severity == OK {
			if all {
				paragraph(&text, fmt.Sprintf("%-7s ", f.Severity), f.Name+": "+f.What)
			}
			continue
		}
		again := f.Name == before.Name && f.Severity == before.Severity
		if !again {
			fmt.Fprintf(&text, "\n%s %s\n", strings.ToUpper(f.Severity.String()), f.Name)
		}
		paragraph(&text, "  ", f.What)
		if !again {
			paragraph(&text, "  why:  ", f.Why)
		}
		paragraph(&text, "  mend: ", f.Mend)
		before = f
	}
	_, err := io.WriteString(w, strings.TrimPrefix(text.String(), "\n"))
	return err
}

// paragraph wraps a text between words, behind a label and below its end. A word
// that is longer than a line has one of its own.
func paragraph(text *strings.Builder, label, words string) {
	if words == "" {
		return
	}
	line := label
	for i, word := range strings.Fields(words) {
		if i > 0 && len([]rune(line))+1+len([]rune(word)) > columns {
			text.WriteString(line + "\n")
			line = strings.Repeat(" ", len(label))
		} else if i > 0 {
			line += " "
		}
		line += word
	}
	text.WriteString(line + "\n")
}
