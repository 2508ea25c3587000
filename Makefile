# `make help` lists what there is to do. Every target sets up what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
# How many tests run at a time. Most of them wait, for ffmpeg to start or for one another.
JOBS ?= 3
# How long `make soak` holds its load, and `make fuzz` goes on; and what the soak leaves to chance.
SECONDS ?= 120
SEED ?= 1
# How often `make bench` measures each side of a comparison.
ROUNDS ?= 5
VENV := .venv
BIN := $(VENV)/bin
NODE_MODULES := tests/browser/node_modules
PLAYER_MODULES := examples/player/node_modules
TRIAL = -m twisted.trial --temp-directory=build/trial

# What builds an image. In OCI's own format, which is the default of two of them, an image has no
# health check.
ENGINE = $(firstword $(foreach tool,buildah podman docker,$(and $(shell command -v $(tool)),$(tool))))
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' audioproxy/__init__.py)

.DELETE_ON_ERROR:
# Those that need a server of buckets.
S3_TESTS = tests.support.test_buckets tests.support.test_names tests.live.test_cluster \
    $(patsubst %.py,%,$(subst /,.,$(wildcard tests/live/test_s3_*.py)))

.PHONY: help install dev ffmpeg system-ffmpeg node browser player haproxy nginx promtool systemd names radosgw run demo \
    check lint format types docs coverage test test-ceph test-ffmpeg soak guards bench wrk fuzz container screenshots clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

install: system-ffmpeg $(VENV)/.installed ## make .venv with audioproxy in it, and install ffmpeg where it is missing

run: install ## start the service on sample audio, and print a few URLs to try
	@$(BIN)/python examples/quickstart.py

demo: install player ## start a page to hear, see and try all of it; AP_LOCAL_ROOT=... for your own files
	@$(BIN)/python -m examples.player

check: lint types docs coverage test ## everything that a change has to pass

test: system-ffmpeg dev browser haproxy nginx systemd names promtool ## run the tests; JOBS=1 runs one at a time
	AUDIOPROXY_BROWSER=required AUDIOPROXY_HAPROXY=required AUDIOPROXY_NSS_WRAPPER=required \
	    AUDIOPROXY_PROMTOOL=required AUDIOPROXY_NGINX=required \
	    AUDIOPROXY_SYSTEMD_ANALYZE=required $(BIN)/python $(TRIAL) -j$(JOBS) tests $(RECORD)

test-ffmpeg: system-ffmpeg ffmpeg ## run the tests with the service on the ffmpeg of `make ffmpeg`
	PATH="$(CURDIR)/build/ffmpeg/bin:$$PATH" AUDIOPROXY_OWN_FFMPEG=required $(MAKE) test

test-ceph: system-ffmpeg dev names radosgw ## run the tests of buckets against Ceph's S3 server
	AUDIOPROXY_S3=ceph AUDIOPROXY_NSS_WRAPPER=required \
	    $(BIN)/python $(TRIAL) $(S3_TESTS)

soak: system-ffmpeg dev ## two nodes under load and faults, every byte compared; SECONDS=600 SEED=7 to vary it
	$(BIN)/python -m tests.soak --seconds $(SECONDS) --seed $(SEED) --report build/soak.md

guards: system-ffmpeg dev ## put known bugs into copies of the service, and require that soak sees each
	$(BIN)/python -m tests.soak.guards

bench: system-ffmpeg ffmpeg nginx wrk $(VENV)/.bench build/bench/peers/.installed ## measure it beside its peers, and write docs/performance.md; ROUNDS=5
	$(BIN)/python -m bench --rounds $(ROUNDS)

lint: dev ## ruff: lint and format; import-linter: the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --cache-dir build/import-linter

format: dev ## ruff: mend what it can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: dev ## mypy --strict
	$(BIN)/mypy

docs: dev ## build the documentation, of the API in build/docs and of the rest in build/site
	$(BIN)/pydoctor
	$(BIN)/mkdocs build --strict --quiet --config-file tools/mkdocs.yml

coverage: dev ## require every branch of the pure packages to be tested
	$(BIN)/coverage run $(TRIAL) tests.grammar tests.media
	$(BIN)/coverage report

fuzz: dev ## arbitrary bytes against every reader; SECONDS=600 takes its time
	@$(BIN)/pip install --quiet --disable-pip-version-check atheris || \
	    echo 'There is no atheris for this Python; Hypothesis does it alone.'
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

ffmpeg: ## build build/ffmpeg/bin: an ffmpeg with nothing in it but audio, which starts at once
	@tools/ffmpeg/build build/ffmpeg

container: ## build the image audioproxy:VERSION, with buildah, podman or docker
	$(or $(ENGINE),$(error There is neither buildah nor podman nor docker to build an image with)) \
	    build $(if $(filter docker,$(ENGINE)),,--format docker) --build-arg VERSION=$(VERSION) \
	    $(FFMPEG:%=--build-arg FFMPEG=%) --tag audioproxy:$(VERSION) --file deploy/container/Containerfile .

screenshots: dev system-ffmpeg browser ## take the pictures of the player for the README
	@[ -n "$$(fc-list : family 2>/dev/null | grep -x 'Inter.*')" ] || tools/system-package fonts-inter
	@[ -n "$$(fc-list : family 2>/dev/null | grep -x 'JetBrains Mono.*')" ] || \
	    tools/system-package fonts-jetbrains-mono
	node tests/browser/screenshots.mjs $(BIN)/python docs/images

clean: ## remove all that was built; .run/ with its samples and variants stays
	rm -rf $(VENV) build dist *.egg-info .hypothesis .ruff_cache .mypy_cache _trial_temp*
	rm -rf $(NODE_MODULES) $(PLAYER_MODULES)
	rm -f twisted/plugins/dropin.cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Set-up. The stamps make it quick when there is nothing to do.

dev: $(VENV)/.dev
	@mkdir -p build

system-ffmpeg:
	@command -v ffmpeg >/dev/null && command -v ffprobe >/dev/null || tools/system-package ffmpeg

node:
	@command -v node >/dev/null || tools/system-package nodejs
	@command -v npm >/dev/null || tools/system-package npm

# For the tests only: a browser, and the libraries that draw in it.
browser: $(NODE_MODULES)/.package-lock.json player
	@command -v chromium >/dev/null || tools/system-package chromium

player: $(PLAYER_MODULES)/.package-lock.json

# For the tests only: a balancer for several nodes. As it is installed it listens nowhere.
haproxy:
	@command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || tools/system-package haproxy

# For the bench only: what asks as fast as one core can, and programs to be compared with.
wrk:
	@command -v wrk >/dev/null || tools/system-package wrk

build/bench/peers/.installed: bench/peers.txt
	$(PYTHON) -m venv --clear $(@D)
	@missing=; while read -r peer; do \
	    $(@D)/bin/pip install --quiet --disable-pip-version-check "$$peer" </dev/null || \
	        { missing=yes; echo "$$peer cannot be installed here; the report says so."; }; \
	done < <(grep -v '^#' $<); \
	[ -n "$$missing" ] || touch $@

# For the tests only: names of hosts that the system does not know.
names:
	@[ -n "$$(ls -d /usr/lib*/libnss_wrapper.so /usr/lib*/*/libnss_wrapper.so 2>/dev/null)" ] || \
	    tools/system-package libnss-wrapper

radosgw:
	@for package in radosgw ceph-mon ceph-osd ceph-common; do \
	    command -v $${package/common/authtool} >/dev/null || tools/system-package $$package || exit; \
	done

# For the tests only: what would listen, or come with a server, if it were installed.
nginx promtool: %: build/bin/%

build/bin/nginx:
	tools/unpacked-program nginx usr/sbin/nginx $@

build/bin/promtool:
	tools/unpacked-program prometheus usr/bin/promtool $@

# For the tests only: it judges units where nothing was booted with it, too.
systemd:
	@command -v systemd-analyze >/dev/null || tools/system-package systemd

# npm writes this file when everything else is in its place.
%/node_modules/.package-lock.json: %/package.json %/package-lock.json | node
	cd $* && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(VENV)/.dev: extras = [dev]
$(VENV)/.bench: extras = [dev,bench]

# An editable install of the default kind hides the twistd plugin.
$(VENV)/.installed $(VENV)/.dev $(VENV)/.bench: setup.cfg pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check \
	    --config-settings editable_mode=compat --editable '.$(extras)'
	@touch $(VENV)/.installed $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || \
	    { echo 'audioproxy needs Python 3.11 or newer, and there is no $(PYTHON).' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	    "audioproxy needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] \
	    + ". Name another one: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || tools/system-package python3-venv
	$(PYTHON) -m venv --clear $(VENV)
