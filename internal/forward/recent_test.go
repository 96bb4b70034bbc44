package forward

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// TestLeastRecentlyUsed compares random uses with a list in which each use moves a key to the end.
func TestLeastRecentlyUsed(t *testing.T) {
	random, r, list := rand.New(rand.NewPCG(1, 2)), newRecent[int, int](), []int{}
	without := func(key int) []int { return slices.DeleteFunc(list, func(k int) bool { return k == key }) }
	for i := range 20_000 {
		key := random.IntN(20)
		switch random.IntN(6) {
		case 0:
			r.put(key, i)
			list = append(without(key), key)
		case 1:
			r.remove(key)
			list = without(key)
		default:
			if _, known := r.use(key); known != slices.Contains(list, key) {
				t.Fatalf("step %d: key %d is known: %t", i, key, known)
			} else if known {
				list = append(without(key), key)
			}
		}
		if r.len() != len(list) {
			t.Fatalf("step %d: %d keys, want %d", i, r.len(), len(list))
		}
		if random.IntN(3) > 0 || len(list) == 0 {
			continue
		}
		if oldest, _ := r.oldest(); oldest != list[0] {
			t.Fatalf("step %d: the least recently used key is %d, want %d", i, oldest, list[0])
		}
	}
}

// TestUsesAtTheSameTime: goroutines use keys at the same time. No use is lost.
func TestUsesAtTheSameTime(t *testing.T) {
	r := newRecent[int, int]()
	for key := range 10 {
		r.put(9-key, key) // 0 is the youngest, so any key whose uses are lost is older
	}
	var using sync.WaitGroup
	for i := range 4 {
		using.Go(func() {
			for n := range 1000 {
				r.use(1 + (i+n)%9)
			}
		})
	}
	using.Wait()
	if oldest, _ := r.oldest(); oldest != 0 {
		t.Errorf("the least recently used key is %d, want 0", oldest)
	}
}
