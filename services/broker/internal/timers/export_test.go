package timers

// DecodedSize is how many bytes a base64 text stands for.
func DecodedSize(text []byte) (size int, ok bool) { return decodedSize(text) }
