package kernel

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestRefused(t *testing.T) {
	destination := Op{Verb: Create, Object: ServerDestination{}}
	for name, c := range map[string]struct {
		op   Op
		err  error
		want bool
	}{
		"no error":                        {destination, nil, false},
		"an endpoint the kernel rejects":  {destination, fmt.Errorf("add: %w", syscall.EINVAL), true},
		"an unknown error number":         {destination, syscall.Errno(4353), true},
		"an object that cannot be sent":   {destination, fmt.Errorf("add: %w", InvalidError{errors.New("no address")}), true},
		"a scheduler the kernel lacks":    {Op{Verb: Create, Object: Server{}}, fmt.Errorf("%w: %w", NoSchedulerError{"mh"}, syscall.ENOENT), true},
		"a set entry":                     {Op{Verb: Create, Object: Member{}}, syscall.EINVAL, true},
		"an address":                      {Op{Verb: Create, Object: BoundAddress{}}, syscall.EADDRNOTAVAIL, true},
		"a whole set":                     {Op{Verb: Create, Object: Set{}}, syscall.EINVAL, false},
		"rules":                           {Op{Verb: Ensure, Object: Ruleset{}}, syscall.EINVAL, false},
		"no permission":                   {destination, syscall.EPERM, false},
		"no memory":                       {destination, syscall.ENOMEM, false},
		"a transaction that is too large": {destination, syscall.EMSGSIZE, false},
		"a full set":                      {Op{Verb: Create, Object: Member{}}, fmt.Errorf("%w (%w)", ErrFull, syscall.Errno(4352)), true},
		"a missing module":                {destination, fmt.Errorf("%w: %w", ErrUnavailable, syscall.ENOENT), false},
		"a server of another program":     {Op{Verb: Create, Object: Server{}}, ErrExists, false},
		"a server that disappeared":       {destination, fmt.Errorf("virtual server %w", ErrNotFound), false},
		"agent shutdown":                  {destination, context.Canceled, false},
		"an error without an errno":       {destination, errors.New("reading the answer failed"), false},
		"a missing device":                {Op{Verb: Create, Object: BoundAddress{}}, fmt.Errorf("%w: %w", ErrNotFound, syscall.ENODEV), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Refused(c.op, c.err); got != c.want {
				t.Errorf("refused: %t", got)
			}
		})
	}
}
