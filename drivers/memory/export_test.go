package memory

// Keys returns for how many keys the store has any state.
func Keys(b *Backend) int {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return len(b.store.locks)
}

// Stores returns how many stores are open by name.
func Stores() int {
	named.Lock()
	defer named.Unlock()
	return len(named.stores)
}
