package memory

import (
	"context"

	"github.com/dlock-go/dlock/driver"
)

// Diagnose implements [driver.Doctor].
func (b *Backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	if err := b.Ping(ctx); err != nil {
		return nil, err
	}
	return []driver.Finding{{
		ID: "memory-process", Level: "warning", Text: "these locks are in the memory of this process, and no other one sees them",
		Advice: "use another driver for locks between processes",
	}}, nil
}
