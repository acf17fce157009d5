.PHONY: test race lint generate bench ci

test:
	go test ./...

race:
	go test -race ./...

lint:
	.ci/run lint

generate:
	go generate ./...

bench:
	go test -run='^$$' -bench=. -benchmem ./...

ci:
	.ci/run
