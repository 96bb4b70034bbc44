package explain

func (e *explaining) missing(part Part) bool {
	_, unread := e.k.Unread[part]
	return unread
}

// couldNotRead is like missing, but also adds a step and a reason the first time. The answer is then uncertain, unless
// the kernel lacks the part altogether.
func (e *explaining) couldNotRead(part Part) bool {
	if !e.missing(part) {
		return false
	}
	u := e.k.Unread[part]
	if u.Absent {
		e.reason(Passes, nil, "%s", u.Why)
		return true
	}
	e.stepOnce("kernel", string(part), "not read: "+u.Why, Unknown)
	e.reason(Unclear, nil, "could not read the %s of this node: %s", part, u.Why)
	return true
}

// required is like couldNotRead, but for a part on which the verdict depends.
func (e *explaining) required(part Part) bool {
	if !e.couldNotRead(part) {
		return false
	}
	e.conclude(Unknown)
	return true
}
