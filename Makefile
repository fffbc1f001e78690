# Each command sets up what it needs, in an environment of its own below .venv.
# PYTHON may name another interpreter (3.11 or newer), NAMES what `make frameworks`, `suites` or `limiters` is to run.

PYTHON ?= python3
ENVS := .venv
AXE := 4.14.1
PIP_FLAGS := --quiet --disable-pip-version-check

# Hundreds of tests start a Python of their own: without its bytecode, each compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo programs environments test test-long test-real docs-shots test-openai2 test-aiobotocore engines chaos lint format bench bench-makespan bench-overhead bench-waiters bench-peers bench-pool bench-runner bench-page mutations frameworks suites never-worse limiters docs test-notebook test-inspect test-clients test-lowest api-check api-update release-check clean

demo: $(ENVS)/demo/ready
	$(ENVS)/demo/bin/tidegate demo

test: $(ENVS)/test/ready test-openai2 test-aiobotocore
	$(ENVS)/test/bin/python -m pytest -n 4 --dist worksteal

# All examples, seeds and cases of the drawn tests, of which `make test` tries a part.
test-long: $(ENVS)/test/ready
	TESTS_LONG=1 $(ENVS)/test/bin/python -m pytest -n 4 --dist worksteal

# Programs that pip does not install, by one call of apt: a second call at the same time would fail at its lock.
PROGRAMS := redis-server chromium npm curl
programs:
	missing=; for each in $(PROGRAMS); do command -v $$each >/dev/null || missing="$$missing $$each"; done; \
	test -z "$$missing" || (apt-get update -qq && apt-get install -qq -y $$missing)

# What `.ci/run` installs. `make -j 3 environments` installs three at a time.
environments: programs $(ENVS)/lint/ready $(ENVS)/docs/ready $(ENVS)/test/ready $(ENVS)/openai2/ready \
	$(ENVS)/aiobotocore/ready $(ENVS)/browser/axe/$(AXE) $(ENVS)/node/ready $(ENVS)/notebook/ready

# With servers that are no Python packages. The tests start and stop them on ports of their own.
test-real: $(ENVS)/test/ready $(ENVS)/browser/axe/$(AXE) $(ENVS)/node/ready programs test-notebook test-inspect
	$(ENVS)/test/bin/python -m pytest -n 2 -m real tests/shared_log
	$(ENVS)/browser/bin/python -m pytest -m real tests/browser
	$(ENVS)/test/bin/python -m pytest -m real tests/node
	$(ENVS)/test/bin/python -m conformance.never_worse --short --lanes 2

# The pictures of docs/page.md, from the browser tests.
docs-shots: $(ENVS)/browser/ready $(ENVS)/browser/axe/$(AXE) programs
	command -v pngquant >/dev/null || (apt-get update -qq && apt-get install -qq -y pngquant)
	TIDEGATE_SHOTS=docs/images $(ENVS)/browser/bin/python -m pytest -m real tests/browser/test_shots.py tests/browser/test_experiments.py
	pngquant --quality 70-95 --speed 1 --strip --force --ext .png docs/images/page-*.png

# The former major version of the OpenAI SDK. The tests of other SDKs run in `make test`.
test-openai2: $(ENVS)/openai2/ready
	$(ENVS)/openai2/bin/python -m pytest -n auto -k openai tests/sdk

# aiobotocore pins a range of botocore that boto3's newest is not in.
test-aiobotocore: $(ENVS)/aiobotocore/ready
	$(ENVS)/aiobotocore/bin/python -m pytest -n auto tests/aws_async

# The oldest dependencies that pyproject.toml allows. Their deprecations are their own.
LOWEST := tests/core tests/test_exports.py tests/test_settings.py tests/test_registry.py tests/test_without_posix.py \
	tests/cli/test_commands.py tests/cli/test_docs.py tests/cli/test_explain.py tests/cli/test_mistakes.py \
	tests/sdk/test_install.py tests/sdk/test_notes.py tests/runner/test_run.py tests/storage tests/ui
NEEDS_ALL := tests/test_exports.py::test_every_public_name_survives_the_import_of_every_module
test-lowest: $(ENVS)/lowest/ready
	$(ENVS)/lowest/bin/python -m pytest -n auto -W default::DeprecationWarning --deselect $(NEEDS_ALL) $(LOWEST)

# The kernel of a notebook.
test-notebook: $(ENVS)/notebook/ready
	$(ENVS)/notebook/bin/python -m pytest -m real tests/integrations/test_kernel.py

# The hook in Inspect AI, which has an environment of its own. The first run installs it.
test-inspect: $(ENVS)/test/ready
	$(ENVS)/test/bin/python -m pytest -n 2 -m real tests/integrations/test_inspect_hook.py

# The lines of docs/frameworks.md that give a framework a wrapped client. The first run installs five frameworks.
test-clients: $(ENVS)/test/ready
	$(ENVS)/test/bin/python -m pytest -m real tests/integrations/test_wrapped_clients.py

# Ray, Dask, Celery, gunicorn, pytest-xdist: their own processes at one key. It needs redis-server, as test-real does.
engines: $(ENVS)/engines/ready
	$(ENVS)/engines/bin/python -m pytest -m real tests/engines

# Experiments through kills, outages and pauses, as long as they must be to be believed: minutes.
chaos: $(ENVS)/test/ready
	$(ENVS)/test/bin/python -m pytest -n 2 -m "chaos or not chaos" tests/chaos

lint: $(ENVS)/lint/ready
	$(ENVS)/lint/bin/ruff check
	$(ENVS)/lint/bin/ruff format --check
	$(ENVS)/lint/bin/mypy
	$(PYTHON) tools/check_prose.py

format: $(ENVS)/lint/ready
	$(ENVS)/lint/bin/ruff check --fix
	$(ENVS)/lint/bin/ruff format

# Every scenario, in virtual time and over HTTP. ONLY=name,name takes some of them, SEEDS=n other than five.
bench: $(ENVS)/bench/ready
	$(ENVS)/bench/bin/python -m bench.lab --plots $(if $(ONLY),--only $(ONLY)) $(if $(SEEDS),--seeds $(SEEDS))

bench-makespan: $(ENVS)/bench/ready
	$(ENVS)/bench/bin/python -m bench.lab --http --family headers $(if $(SEEDS),--seeds $(SEEDS))

bench-overhead bench-waiters bench-peers bench-pool bench-runner bench-page: bench-%: $(ENVS)/test/ready
	$(ENVS)/test/bin/python -m bench.$*

# Each rule of the controller without itself, in virtual time.
mutations: $(ENVS)/test/ready
	$(ENVS)/test/bin/python -m bench.mutations

frameworks: $(ENVS)/test/ready
	$(ENVS)/test/bin/python -m conformance.frameworks $(NAMES)

# The SDKs' own test suites, without tidegate and with it.
suites:
	$(PYTHON) -m conformance.suites --environments $(ENVS) $(NAMES)

# Programs without tidegate, wrapped and under `tidegate run`, against the same servers: none may be worse with it.
# The programs of `make frameworks` are among them. NAMES takes some.
never-worse: $(ENVS)/test/ready
	$(ENVS)/test/bin/python -m conformance.never_worse $(if $(NAMES),$(NAMES),--lanes 2 --frameworks)

# Rate limiters of other people without tidegate and with it. NAMES takes some, LIMITERS is for options (--repeat 3).
# The first run installs those of Debian, and makes environments for the others.
limiters: $(ENVS)/test/ready
	command -v nginx >/dev/null || (apt-get update -qq && apt-get install -qq -y nginx-light)
	command -v haproxy >/dev/null || (apt-get update -qq && apt-get install -qq -y haproxy)
	command -v varnishd >/dev/null || (apt-get update -qq && apt-get install -qq -y varnish varnish-modules)
	command -v npm >/dev/null || (apt-get update -qq && apt-get install -qq -y npm)
	$(ENVS)/test/bin/python -m conformance.limiters $(LIMITERS) $(NAMES)

# The documentation site, in build/docs/site. A warning, a broken link or a page outside the navigation is an error.
docs: $(ENVS)/docs/ready
	$(ENVS)/docs/bin/python -m tools.docs_site

# The public API: as its committed list says, and against the last tag. `make api-update` writes the list.
api-check: $(ENVS)/lint/ready
	$(ENVS)/lint/bin/python tools/public_api.py check

api-update: $(ENVS)/lint/ready
	$(ENVS)/lint/bin/python tools/public_api.py write

# Builds the distributions twice, compares and inspects them, and runs the demo from the wheel. It publishes nothing.
release-check: $(ENVS)/release/ready
	$(ENVS)/release/bin/python -m tools.release_check $(if $(DIST),--out $(DIST)) $(if $(TAG),--tag $(TAG))

clean:
	rm -rf $(ENVS) bench/results .hypothesis

$(ENVS)/%/pip: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("tidegate needs Python 3.11 or newer, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(ENVS)/$*
	$(ENVS)/$*/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --upgrade pip
	touch $@

$(ENVS)/demo/ready: $(ENVS)/demo/pip constraints.txt
	$(ENVS)/demo/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable ".[demo]"
	touch $@

$(ENVS)/test/ready: $(ENVS)/test/pip constraints.txt
	$(ENVS)/test/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable . --group test
	touch $@

$(ENVS)/bench/ready: $(ENVS)/bench/pip constraints.txt
	$(ENVS)/bench/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable . --group test --group bench
	touch $@

$(ENVS)/browser/ready: $(ENVS)/browser/pip constraints.txt
	$(ENVS)/browser/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable . --group test --group browser
	touch $@

# axe-core is no Python package. Its licence (MPL-2.0) stays outside the distribution: only the browser tests load it.
$(ENVS)/browser/axe/$(AXE): | $(ENVS)/browser/ready programs
	npm install --prefix $(@D) --no-save --no-audit --no-fund --loglevel=error axe-core@$(AXE)
	touch $@

$(ENVS)/lowest/ready: $(ENVS)/lowest/pip
	$(ENVS)/lowest/bin/python -m pip install $(PIP_FLAGS) uv
	$(ENVS)/lowest/bin/uv pip compile --quiet --python $(ENVS)/lowest/bin/python --resolution lowest-direct --extra demo --extra postgres --extra redis --extra ui --extra compare --output-file $(ENVS)/lowest/lowest.txt pyproject.toml
	$(ENVS)/lowest/bin/python -m pip install $(PIP_FLAGS) --constraint $(ENVS)/lowest/lowest.txt --editable ".[demo,postgres,redis,ui,compare]" --group test-lowest
	touch $@

$(ENVS)/notebook/ready: $(ENVS)/notebook/pip constraints-notebook.txt
	$(ENVS)/notebook/bin/python -m pip install $(PIP_FLAGS) --constraint constraints-notebook.txt --editable . --group notebook
	touch $@

$(ENVS)/openai2/ready: $(ENVS)/openai2/pip constraints-openai2.txt
	$(ENVS)/openai2/bin/python -m pip install $(PIP_FLAGS) --constraint constraints-openai2.txt --editable . --group test-openai2
	touch $@

$(ENVS)/aiobotocore/ready: $(ENVS)/aiobotocore/pip constraints-aiobotocore.txt
	$(ENVS)/aiobotocore/bin/python -m pip install $(PIP_FLAGS) --constraint constraints-aiobotocore.txt --editable . --group test-aiobotocore
	touch $@

$(ENVS)/engines/ready: $(ENVS)/engines/pip constraints-engines.txt
	$(ENVS)/engines/bin/python -m pip install $(PIP_FLAGS) --constraint constraints-engines.txt --editable . --group engines
	touch $@

$(ENVS)/lint/ready: $(ENVS)/lint/pip constraints.txt
	$(ENVS)/lint/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable . --group test --group lint
	touch $@

# Packages of Node, for programs of Node under a gateway.
$(ENVS)/node/ready: tests/node/package.json | programs
	mkdir -p $(ENVS)/node
	cp tests/node/package.json $(ENVS)/node/
	cd $(ENVS)/node && npm install --no-audit --no-fund --ignore-scripts --loglevel=error
	touch $@

$(ENVS)/docs/ready: $(ENVS)/docs/pip constraints-docs.txt
	$(ENVS)/docs/bin/python -m pip install $(PIP_FLAGS) --constraint constraints-docs.txt --editable ".[experiments]" --group docs
	touch $@

$(ENVS)/release/ready: $(ENVS)/release/pip constraints-release.txt
	$(ENVS)/release/bin/python -m pip install $(PIP_FLAGS) --constraint constraints-release.txt build check-wheel-contents twine zizmor
	touch $@

.PRECIOUS: $(ENVS)/%/pip
