package explain

// missing says whether a part is missing in what was read.
func (e *explaining) missing(part Part) bool {
	_, unread := e.k.Unread[part]
	return unread
}

// couldNotRead is missing, and tells of it once.
func (e *explaining) couldNotRead(part Part) bool {
	if !e.missing(part) {
		return false
	}
	u := e.k.Unread[part]
	if u.Absent {
		e.reason("%s", u.Why)
		return true
	}
	e.stepOnce("kernel", string(part), "not read: "+u.Why, Unknown)
	e.reason("the %s of this node could not be read: %s", part, u.Why)
	return true
}

// unsure is couldNotRead for parts without which there is no answer.
func (e *explaining) unsure(part Part) bool {
	is := e.couldNotRead(part)
	e.unknown = e.unknown || is
	return is
}
