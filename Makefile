# make run     install what is missing, build, prepare the default image, boot a sandbox, mount it, open a shell
# make test    every test, the ones in a real VM included
# make help    the rest

SHELL       := /bin/bash
GO          ?= go
NAME        ?= demo
BIN         := bin
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS     := -s -w -X main.version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFILES      = $(shell git ls-files -co --exclude-standard -- '*.go')

# One setting for what is built, tested and checked, so that everything is compiled once; static binaries come of it too.
export CGO_ENABLED := 0

# Debian packages that msb needs at run time. `make deps` installs only those that are missing.
DEPS := qemu-system-x86 qemu-utils fuse3 e2fsprogs mmdebstrap busybox-static uidmap git \
        debian-archive-keyring ca-certificates xz-utils zstd
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT  := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300

.PHONY: run test test-user testdeps testhome deps build image image-update bench fuzz soak screenshots lint fmt clean help

run: deps build image
	@$(BIN)/msb up $(NAME)

help:
	@printf '%s\n' 'run test deps build image image-update bench fuzz soak screenshots lint fmt clean'
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

deps:
	@missing=(); \
	for p in $(DEPS); do \
	  [ "$$(dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing+=("$$p"); \
	done; \
	start=$$SECONDS; \
	if [ $${#missing[@]} -gt 0 ]; then \
	  printf '  %-8s %s\n' deps "installing $${missing[*]}"; \
	  log=$$(mktemp); \
	  { $(APT) install -y --no-install-recommends "$${missing[@]}" || \
	    { $(APT) update && $(APT) install -y --no-install-recommends "$${missing[@]}"; }; } >$$log 2>&1 \
	    || { cat $$log; rm -f $$log; echo "deps: could not install $${missing[*]}: run the apt-get command above by hand, then make again" >&2; exit 1; }; \
	  rm -f $$log; \
	  printf '  %-8s %s\n' deps "$${#missing[@]} packages installed ($$((SECONDS-start)) s)"; \
	else \
	  printf '  %-8s %s\n' deps 'nothing missing'; \
	fi

# The guest agent is built first, static, and embedded in msb.
build:
	@start=$$SECONDS; \
	[ -x $(BIN)/msb ] || printf '  %-8s %s\n' build 'compiling, which takes a few minutes the first time'; \
	$(GO) build -ldflags '-s -w' -o $(BIN)/msb-guest ./guest/msb-guest && \
	cmp -s $(BIN)/msb-guest cmd/msb/guestbin/msb-guest || cp $(BIN)/msb-guest cmd/msb/guestbin/msb-guest && \
	$(GO) build -tags embedguest -ldflags '$(LDFLAGS)' -o $(BIN)/msb ./cmd/msb && \
	printf '  %-8s %s\n' build "$(BIN)/msb, guest agent ($$((SECONDS-start)) s)"

image: build
	@$(BIN)/msb image build debian --if-missing

image-update: build
	@$(BIN)/msb image build debian

# Tests that boot machines find the kernel and the image tiny in a home of their own.
TESTHOME := $(CURDIR)/$(BIN)/testhome
TESTENV   = MSB_TEST_HOME=$(TESTHOME) MSB_TEST_LIBRARY=$(TESTHOME) MSB_TEST_VM=1 MSB_BIN=$(CURDIR)/$(BIN)/msb MSB_GUEST=$(CURDIR)/$(BIN)/msb-guest

testhome: build
	@MSB_HOME=$(TESTHOME) $(BIN)/msb image build tiny --if-missing

# Programs that the tests drive: a database on the mount, a multiplexer around the screen, readers of what we write.
TESTDEPS := sqlite3 tmux cpio lz4 fio stress-ng
testdeps:
	@$(MAKE) --no-print-directory deps DEPS="$(DEPS) $(TESTDEPS)"

# Two packages at a time, and of those the slow ones boot machines: more would only make them wait for each other.
test: testdeps testhome
	$(TESTENV) $(GO) test -count 1 -p 2 -timeout 14m ./...

# What depends on who runs it, again: the command line, from creation to removal.
test-user: deps testhome
	$(TESTENV) $(GO) test -count 1 -timeout 10m ./cmd/msb/...

# Against the limits of this machine, then the benchmarks of single packages.
bench: deps testhome
	MSB_HOME=$(TESTHOME) $(GO) run ./cmd/bench -msb $(BIN)/msb
	$(TESTENV) $(GO) test -run '^$$' -bench . -benchtime 1x -timeout 30m ./...

# The pictures in docs/screens, of the real thing.
screenshots: testdeps testhome
	MSB_GUEST=$(CURDIR)/$(BIN)/msb-guest $(GO) run ./cmd/shots -msb $(BIN)/msb -library $(TESTHOME)

# Every fuzz target of FUZZ for FUZZTIME.
FUZZTIME ?= 60s
FUZZ     ?= ./...
fuzz:
	@$(GO) list -f '{{.ImportPath}}' $(FUZZ) | while read -r pkg; do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "$$pkg $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$pkg || exit 1; \
	  done; \
	done

# Long runs: the same tests, over and over, the race detector on.
SOAK ?= 20
soak: testdeps testhome
	$(TESTENV) MSB_SOAK=1 CGO_ENABLED=1 $(GO) test -race -count $(SOAK) -timeout 6h ./...

lint:
	@bad=$$(gofmt -l $(GOFILES)); [ -z "$$bad" ] || { echo "not gofmt'ed: $$bad" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	GOOS=darwin GOARCH=arm64 $(GO) build ./fusefs ./agentclient

fmt:
	gofmt -w $(GOFILES)

clean:
	rm -rf $(BIN) cmd/msb/guestbin/msb-guest
