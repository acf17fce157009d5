//go:build generate

package dlock

//go:generate go tool mockgen -write_package_comment=false -package mocks -destination mocks/dlock.go github.com/dlock-go/dlock Locker,LeaseLocker
//go:generate go tool mockgen -write_package_comment=false -package mocks -destination mocks/driver.go github.com/dlock-go/dlock/driver Driver,Backend,Waiter,BatchRenewer,Inspector,Breaker,Pinger,Doctor,LossWatcher,CallModer
