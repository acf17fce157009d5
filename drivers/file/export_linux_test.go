package file

// BootIDIn reads the id of the machine's boot from a file.
var BootIDIn = bootIDIn

// Shifted reports whether a process with these offsets sees another clock than the machine's.
var Shifted = shifted

// Unfit says why locks cannot be kept on a file system, or nothing.
func Unfit(magic int64) string { return fsKinds[magic].unfit() }
