package timers

// The classes of what a base64 text may hold: the decoder of PostgreSQL passes over
// these blanks, and only over these.
const (
	other byte = iota
	digit
	blank
	padding
)

// alphabet gives every byte its class.
var alphabet = func() (classes [256]byte) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		classes[c] = digit
	}
	for _, c := range []byte(" \t\r\n") {
		classes[c] = blank
	}
	classes['='] = padding
	return classes
}()

// decodedSize is how many bytes a base64 text stands for. It decodes nothing: a
// payload may be large, and only the database needs its bytes. What it accepts, the
// decoder of PostgreSQL accepts and understands as every other decoder does; that
// one also takes text behind the padding, and loses bytes of it.
func decodedSize(text []byte) (size int, ok bool) {
	var digits, pads int
	for _, c := range text {
		switch alphabet[c] {
		case digit:
			if pads > 0 {
				return 0, false
			}
			digits++
		case blank:
		case padding:
			pads++
		default:
			return 0, false
		}
	}
	switch digits % 4 {
	case 0:
		ok = pads == 0
	case 2:
		ok = pads == 2
	case 3:
		ok = pads == 1
	}
	return digits * 3 / 4, ok
}
