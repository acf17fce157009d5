package file

// FileName is the name of a key's file.
var FileName = fileName
