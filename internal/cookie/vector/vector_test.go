package vector

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"testing"

	"smartcookie/internal/cookie"
)

const contract = "../../../contract/"

func readContract(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(contract + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readVectors(t *testing.T) []Vector {
	t.Helper()
	f, err := Parse(readContract(t, "vectors/cookie.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Vectors) < 200 {
		t.Fatalf("only %d vectors", len(f.Vectors))
	}
	return f.Vectors
}

func TestVectorsInTheContractAreTheGeneratedOnes(t *testing.T) {
	want, err := Generate().Text()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readContract(t, "vectors/cookie.json"), want) {
		t.Error("cookie.json differs from what the model generates: run go generate ./internal/cookie")
	}
}

func TestModelAcceptsWhatEachVectorExpects(t *testing.T) {
	for _, v := range readVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			code, _, ok := check(t, v)
			if ok != v.Valid() {
				t.Fatalf("valid %v, want %s", ok, v.Expect)
			}
			if !ok {
				return
			}
			var tsecr uint32
			if v.Packet.TSecr != nil {
				tsecr = uint32(*v.Packet.TSecr)
			}
			got := optionsOf(cookie.Decode(v.Flow().Family(), code, v.Packet.TSecr != nil, tsecr), true)
			if code != v.Code || !reflect.DeepEqual(&got, v.Decoded) {
				t.Errorf("code %d, options %+v; want %d, %+v", code, got, v.Code, *v.Decoded)
			}
		})
	}
}

// check does what the receiver of the vector does.
func check(t *testing.T, v Vector) (uint8, cookie.Slot, bool) {
	t.Helper()
	slots := map[uint64]cookie.Slot{}
	for _, s := range v.Receiver.Slots {
		hash, err := cookie.ParseHash(s.Hash)
		if err != nil {
			t.Fatal(err)
		}
		slot := cookie.Slot{Epoch: s.Epoch, Hash: hash}
		copy(slot.Key[:], s.Key)
		slots[s.Epoch] = slot
	}
	r := cookie.Receiver{
		Epoch:  v.Receiver.Epoch,
		Window: map[string]cookie.Window{edge: cookie.EdgeWindow, server: cookie.ServerWindow}[v.Receiver.Role],
		Slot:   func(e uint64) (cookie.Slot, bool) { s, ok := slots[e]; return s, ok },
	}
	return r.Check(uint32(v.Packet.Ack-1), v.Flow(), uint32(v.Packet.Seq-1))
}

// What the vectors are for: no case of the specification is missing.
func TestVectorsCoverEveryCodeAndBothOutcomes(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range readVectors(t) {
		seen[fmt.Sprintf("%s timestamps=%v code=%d", v.Family, v.TSvalBits != nil, v.Code)] = true
		seen[fmt.Sprintf("%s %s %s", v.Family, v.Hash, v.Expect)] = true
		seen[fmt.Sprintf("%s %s epoch%+d", v.Receiver.Role, v.Expect, int64(v.Receiver.Epoch-v.Epoch))] = true
		seen[fmt.Sprintf("wraps=%v", v.Code+uint8(v.MAC>>26&31) >= 32)] = true
	}
	wanted := []string{"wraps=true", "wraps=false"}
	for _, family := range []string{"ipv4", "ipv6"} {
		for code := range 32 {
			wanted = append(wanted, fmt.Sprintf("%s timestamps=true code=%d", family, code))
		}
		for class := range 8 {
			wanted = append(wanted, fmt.Sprintf("%s timestamps=false code=%d", family, class<<2|3))
		}
		for index := range 4 {
			wanted = append(wanted, fmt.Sprintf("%s timestamps=false code=%d", family, 6<<2|index))
		}
		for _, hash := range hashes {
			wanted = append(wanted, family+" "+hash.String()+" valid", family+" "+hash.String()+" invalid")
		}
	}
	for _, role := range []string{edge, server} {
		for _, age := range []string{"invalid epoch-2", "valid epoch-1", "valid epoch+0", "valid epoch+1", "invalid epoch+3"} {
			wanted = append(wanted, role+" "+age)
		}
	}
	wanted = append(wanted, "edge invalid epoch+2", "server valid epoch+2")
	for _, w := range wanted {
		if !seen[w] {
			t.Errorf("no vector with %s", w)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range readVectors(t) {
		if seen[v.Name] {
			t.Errorf("two vectors are called %s", v.Name)
		}
		seen[v.Name] = true
	}
}

func TestWorkedExampleOfTheSpecificationIsTheVector(t *testing.T) {
	v := readVectors(t)[0]
	if v.Name != "worked-example" {
		t.Fatalf("first vector is %s", v.Name)
	}
	text := readContract(t, "cookie.md")
	h, m := v.MAC>>26&31, uint32(v.MAC)&0x03ffffff
	field := (v.Code + uint8(h)) % 32
	for _, line := range []string{
		fmt.Sprintf(`epoch +e = %d +P = %d`, v.Epoch, v.Epoch%2),
		fmt.Sprintf(`client ISN +%#08x`, uint32(v.ISN)),
		fmt.Sprintf(`: code = %d`, v.Code),
		fmt.Sprintf(`T +%08x +H = %d, M = %08x`, uint32(v.MAC), h, m),
		fmt.Sprintf(`code field +\(%d \+ %d\) mod 32 +%d`, v.Code, h, field),
		fmt.Sprintf(`cookie +%08x +P = %d, %d, %08x`, uint32(v.Cookie), v.Epoch%2, field, m),
		fmt.Sprintf(`sequence number %08x and acknowledges\s+%08x`, uint32(v.Packet.Seq), uint32(v.Packet.Ack)),
	} {
		if !regexp.MustCompile(line).Match(text) {
			t.Errorf("cookie.md has no %q", line)
		}
	}
}
