package etcd_test

import (
	"context"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
)

func Example() {
	locker, err := dlock.Open("etcd", "etcd://h1:2379,h2:2379,h3:2379", &dlock.Config{Prefix: "app:", DefaultTTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	err = dlock.Do(context.Background(), locker, "order:123", func(ctx context.Context) error {
		fence, _ := dlock.Fence(ctx)
		fmt.Println("shipping with fence", fence)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The lock of the key "orders" is the one that etcdctl lock svc/orders takes.
func ExampleNew() {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"h1:2379", "h2:2379", "h3:2379"}, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	locker, err := dlock.New(etcddriver.New(client, etcddriver.WithNamespace("svc/")), &dlock.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	if err := locker.Lock(context.Background(), "orders"); err != nil {
		log.Fatal(err)
	}
}
