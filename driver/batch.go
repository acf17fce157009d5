package driver

import "context"

// BatchRenewer renews many holds at once. Without it the engine calls Renew for each, some at a
// time.
type BatchRenewer interface {
	Backend

	// RenewBatch answers claims[i] in the i-th element of the result exactly as Renew would, a
	// refusal of one claim included: it fails no other. The claims are of different keys, and there
	// may be thousands: cutting them into requests of a good size is the driver's business. One
	// slow or failing part of the store does not fail the claims that live elsewhere.
	RenewBatch(ctx context.Context, claims []Claim) []Renewal
}

// Renewal is the answer to one claim of a batch.
type Renewal struct {
	Grant Grant
	Err   error
}
