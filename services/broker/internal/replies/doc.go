// Package replies lends memory to the bodies of answers, which are large and live
// for a moment: clearing new memory and collecting the old costs more than to write
// them.
package replies
