package cookie

// Offer is a set of options that a service agrees to (enum service_option).
type Offer uint8

// The options of an Offer.
const (
	OfferTimestamps Offer = 1 << iota
	OfferSACK
	OfferScale
	OfferECN

	OfferAll = OfferTimestamps | OfferSACK | OfferScale | OfferECN
)

// Options are the TCP options of a SYN or SYN-ACK, and whether its flags ask
// for ECN (RFC 3168 6.1.1: ECE and CWR in a SYN, ECE alone in a SYN-ACK).
type Options struct {
	MSS        uint16 // bytes, RFC 9293 3.7.1; 0: no such option
	Timestamps bool   // RFC 7323 3
	SACK       bool   // RFC 2018 2
	HasScale   bool   // RFC 7323 2
	Scale      uint8  // as in the packet: above 14 counts as 14; 0 without HasScale
	ECN        bool
}

// scaleMax is the largest window scale (RFC 7323 2.3).
const scaleMax = 14

// limit removes what the service does not offer and bounds the scale.
func (o Options) limit(offer Offer) Options {
	o.Timestamps = o.Timestamps && offer&OfferTimestamps != 0
	o.SACK = o.SACK && offer&OfferSACK != 0
	o.HasScale = o.HasScale && offer&OfferScale != 0
	o.ECN = o.ECN && offer&OfferECN != 0
	o.Scale = min(o.Scale, scaleMax)
	if !o.HasScale {
		o.Scale = 0
	}
	return o
}

// The low six bits of our TSval (enum tsval_layout).
//
//	bit  31 ....... 6 |  5  |  4   | 3 .. 0
//	     clock >> 26  | ECN | SACK | window scale, 15: none
const (
	tsvalScaleMask = 0x0f
	tsvalScaleNone = 0x0f
	tsvalSACK      = 0x10
	tsvalECN       = 0x20
	tsvalMask      = 0x3f
	tickShift      = 20 // TSval ticks every 2^20 ns
)

// For clients without timestamps, code = class << 2 | MSS index.
const (
	classPlain        = 0
	classSACK         = 1
	classScale0NoSACK = 7
	classScaleMost    = 10 // with SACK
	classShift        = 2
	classMSSMask      = 3
)

// Classes with SACK and a window scale: classFirstScale + i stands for
// classScales[i].
const classFirstScale = 2

var classScales = []uint8{0, 2, 4, 7, 8}

// The MSS values of contract.h, ascending: long for clients with timestamps,
// short for those without.
var (
	mss4Long = []uint16{
		536, 600, 680, 768, 880, 996, 1024, 1100, 1160, 1200, 1220, 1240,
		1260, 1280, 1300, 1320, 1340, 1360, 1380, 1400, 1412, 1420, 1430,
		1440, 1452, 1460, 1960, 2948, 4056, 6000, 8860, 8960,
	}
	mss6Long = []uint16{
		1220, 1230, 1240, 1250, 1260, 1270, 1280, 1290, 1300, 1310, 1320,
		1330, 1340, 1350, 1360, 1370, 1380, 1390, 1400, 1408, 1412, 1420,
		1432, 1440, 1460, 1940, 2928, 4036, 5980, 8860, 8940, 8960,
	}
	mss4Short = []uint16{536, 1300, 1400, 1460}
	mss6Short = []uint16{1220, 1300, 1400, 1440}
)

// MSSValues returns the ascending MSS values, in bytes, that a cookie can
// carry for a client with or without timestamps.
func MSSValues(family Family, timestamps bool) []uint16 {
	switch {
	case family == IPv4 && timestamps:
		return mss4Long
	case family == IPv4:
		return mss4Short
	case timestamps:
		return mss6Long
	}
	return mss6Short
}

// floorIndex returns the index of the largest value not above v, or 0.
func floorIndex[T uint8 | uint16](ascending []T, v T) uint8 {
	var found uint8
	for i, listed := range ascending {
		if listed <= v {
			found = uint8(i)
		}
	}
	return found
}

// Record is what a SYN-ACK says of the client's options, and so what comes
// back: the cookie's code and, with timestamps, the low six bits of TSval.
type Record struct {
	Code       uint8 // 0 to 31
	Timestamps bool  // which reading of the code holds
	TSvalBits  uint8 // 0 to 63; 0 without timestamps
}

// Encode records the options of a SYN as far as the service offers them. An
// absent MSS stands for the family's default (536 or 1220), which is the
// first of the listed values, as is whatever lies below it.
func Encode(family Family, syn Options, offer Offer) Record {
	o := syn.limit(offer)
	index := floorIndex(MSSValues(family, o.Timestamps), o.MSS)
	if o.Timestamps {
		return Record{Code: index, Timestamps: true, TSvalBits: tsvalBits(o)}
	}
	return Record{Code: class(o)<<classShift | index}
}

func tsvalBits(o Options) uint8 {
	bits := uint8(tsvalScaleNone)
	if o.HasScale {
		bits = o.Scale
	}
	if o.SACK {
		bits |= tsvalSACK
	}
	if o.ECN {
		bits |= tsvalECN
	}
	return bits
}

// class forgoes a scale that it could only record far too small.
func class(o Options) uint8 {
	switch {
	case o.HasScale && o.SACK && o.Scale <= classScaleMost:
		return classFirstScale + floorIndex(classScales, o.Scale)
	case o.HasScale && !o.SACK && o.Scale == 0:
		return classScale0NoSACK
	case o.SACK:
		return classSACK
	}
	return classPlain
}

// TSval returns the timestamp of the SYN-ACK at a time of the clock that makes
// epochs.
func (r Record) TSval(clockNS uint64) uint32 {
	return uint32(clockNS>>tickShift)&^tsvalMask | uint32(r.TSvalBits)
}

// Decode returns the client's options by the cookie's code and the timestamp
// option, if any, of the packet that sets the connection up. The code is 0 to
// 31; without timestamps, tsecr means nothing.
func Decode(family Family, code uint8, timestamps bool, tsecr uint32) Options {
	values := MSSValues(family, timestamps)
	if timestamps {
		o := Options{
			MSS:        values[code],
			Timestamps: true,
			SACK:       tsecr&tsvalSACK != 0,
			ECN:        tsecr&tsvalECN != 0,
			HasScale:   tsecr&tsvalScaleMask != tsvalScaleNone,
		}
		if o.HasScale {
			o.Scale = uint8(tsecr & tsvalScaleMask)
		}
		return o
	}
	o := Options{MSS: values[code&classMSSMask]}
	switch class := code >> classShift; class {
	case classPlain:
	case classSACK:
		o.SACK = true
	case classScale0NoSACK:
		o.HasScale = true
	default:
		o.SACK, o.HasScale, o.Scale = true, true, classScales[class-classFirstScale]
	}
	return o
}

// Answer returns the options of the SYN-ACK for a record: exactly those that
// it holds, with the service's MSS in bytes and the key's window scale.
func (r Record) Answer(family Family, mss uint16, windowScale uint8) Options {
	o := Decode(family, r.Code, r.Timestamps, uint32(r.TSvalBits))
	o.MSS = mss
	if o.HasScale {
		o.Scale = windowScale
	}
	return o
}
