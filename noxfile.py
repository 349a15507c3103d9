"""Every command of the repository, each in an environment of its own that needs only Python and
pip.

In: ``python -m nox -s <session>``. What always holds: torch is installed first and pinned, so that
no other package chooses its version; environments are reused from run to run; plain pip, never uv.
"""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).resolve().parent

PACKAGES = (
    "frontend-tracer",
    "inductor-backend",
    "cudagraphs-backend",
    "onnxrt-backend",
    "tvm-backend",
)

TORCH = "torch==2.13.0"

#: The other versions of torch that are supported, each with the torchvision that was built for it.
#: Their wheels bring CUDA's libraries and a Triton that fits.
TORCH_ENDS = {
    "2.11": ("torch==2.11.0", "torchvision==0.26.0"),
    "2.14": ("torch==2.14.1", "torchvision==0.29.1"),
    "2.15": ("torch==2.15.0", "torchvision==0.29.2"),
}
TORCH_BETWEEN = {
    "2.12": ("torch==2.12.1", "torchvision==0.27.1"),
    "2.13": (TORCH, "torchvision==0.28.0"),
}

#: For building: the packages are built with what is installed, without downloading it for each.
BUILD = ("setuptools==84.2.1", "wheel")

CORE = ("pluggy>=1.5,<2", "sympy>=1.13", "networkx>=2.5.1", "numpy==2.4.6")

#: The libraries whose models the tests and the demo compile.
MODELS = ("transformers==5.23.0", "scipy==1.17.1")

#: The rows of the demo that `package` runs.
DEMO_FIRST = ("cos_sin", "resnet18_64", "resnet18_224")

#: Installed without their dependencies, because those would choose torch's version.
TORCHVISION = "torchvision==0.28.0"
MODELS_ALONE = ("timm==1.0.31",)
MODELS_ALONE_NEED = ("huggingface_hub", "safetensors", "pyyaml", "pillow")

ONNX = ("onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.31.1")

#: What the benchmark beside every peer needs: the other engine, and plots.
OPENVINO = "openvino==2026.4.0"
ENGINES = (OPENVINO, "matplotlib>=3.9,<4")

#: What the benchmark of tokens on CPUs needs: quantized weights and llama.cpp, which pip compiles; the
#: exporter of language models to OpenVINO, which takes its own version of transformers.
TOKENS = ("torchao==0.18.0", "llama-cpp-python==0.3.36", "gguf==0.19.0")
TOKENS_OPENVINO = "optimum-intel[openvino]==2.2.0"

TVM = ("apache-tvm==0.27.0", "apache-tvm-ffi==0.1.14.post1")

#: What a package needs beside the core's own dependencies.
ENGINES_OF = {"onnxrt-backend": ONNX, "tvm-backend": TVM}

#: What TVM's search needs and does not ask for.
CLOUDPICKLE = "cloudpickle==3.1.2"
TUNING = (CLOUDPICKLE, "psutil==7.2.2")

#: expecttest: torch.testing._internal, whose database of operators the sweep runs, imports it.
#: redis: the client of a fleet's store, whose tests start a server where the machine has one.
TEST = (
    "pytest==9.2.0", "pytest-timeout==2.4.0", "pytest-xdist==3.8.0", "expecttest==0.3.0",
    "redis==8.1.0", CLOUDPICKLE,
)  # fmt: skip

#: accelerate is installed without its dependencies, because those would choose torch's version.
TEST_ALONE = ("accelerate==1.15.0",)
#: A C++ compiler from PyPI, which serves where the system has none.
ZIG = "ziglang==0.17.1"
TEST_ALONE_NEED = ("psutil==7.2.2",)

#: The libraries whose programs `python -m benchmarks ecosystem` runs, and what they import; without
#: their dependencies, because many would choose torch's version.
ECOSYSTEM_ALONE = (
    "accelerate==1.15.0", "annotated-types==0.8.0", "attrs==26.1.0", "autoray==0.11.0",
    "beartype==0.23.1", "bitsandbytes==0.50.2", "botorch==0.18.1", "certifi==2026.10.19.post1",
    "charset-normalizer==3.5.3", "cloudpickle==3.1.3", "CoLT5-attention==0.11.2",
    "contourpy==1.3.3", "cycler==0.12.1", "denoising-diffusion-pytorch==2.3.4",
    "diffusers==0.42.1", "e3nn==0.6.0", "einops==0.8.2", "einx==0.4.3", "ema-pytorch==0.8.3",
    "entmax==1.3", "Farama-Notifications==0.0.6", "fonttools==4.68.0", "frozendict==2.5.1",
    "ftfy==6.3.1", "gpytorch==1.15.2", "gymnasium==1.4.0", "higher==0.2.1",
    "hyper-connections==0.4.11", "jaxtyping==0.3.11", "joblib==1.6.0", "kiwisolver==1.5.1",
    "kornia==0.9.0", "kornia_rs==0.2.0", "lightning==2.6.6", "lightning-utilities==0.15.3",
    "linear_operator==0.6.1", "lion-pytorch==0.2.5", "local-attention==1.11.2", "loguru==0.7.3",
    "matplotlib==3.11.2", "monai==1.6.1", "multipledispatch==1.0.0", "narwhals==2.29.0",
    "ncps==1.0.1", "neuraloperator==2.0.0", "nflows==0.14", "normflows==1.7.3",
    "open_clip_torch==3.3.0", "opt-einsum-fx==0.1.4", "opt_einsum==3.4.0", "orjson==3.13.0",
    "pandas==3.1.1", "peft==0.21.2", "psutil==7.2.2", "pydantic==2.14.4", "pydantic_core==2.50.5",
    "pyparsing==3.3.3", "pyre-extensions==0.0.32", "pyro-api==0.1.2", "pyro-ppl==1.9.2",
    "python-dateutil==4.0.0", "pytorch-forecasting==1.8.0", "pytorch-lightning==2.6.6",
    "pytz==2026.6", "pyvers==0.2.3", "requests==2.34.2", "rotary-embedding-torch==0.9.1",
    "scikit-base==1.2.0", "scikit-learn==1.9.1", "segmentation_models_pytorch==0.6.0",
    "sentence-transformers==6.2.0", "six==1.17.0", "tensordict==0.15.3", "tensorly==0.10.0",
    "tensorly-torch==0.5.0", "threadpoolctl==3.8.0", "torch-einops-utils==0.2.0",
    "torch-ema==0.3", "torch-geometric==2.8.1", "torch-harmonics==0.9.3", "torch-pruning==1.6.1",
    "torch_fidelity==0.4.0", "torchao==0.18.0", "torchcde==0.2.5", "torchdiffeq==0.2.5",
    "torchist==1.0.1", "torchjd==0.18.0", "torchmetrics==1.9.0", "torchode==1.0.1",
    "torchquad==0.6.0", "torchrl==0.14.1", "torchsde==0.2.6", "torchtyping==0.1.5",
    "trampoline==0.1.2", "typeguard==4.6.1", "typing-inspect==0.9.0", "typing-inspection==0.4.5",
    "tzdata==2026.6", "urllib3==2.8.0", "vector-quantize-pytorch==1.32.0", "wadler_lindig==0.1.8",
    "wcwidth==0.9.4", "x-transformers==2.31.10", "xxhash==4.1.0", "zuko==1.6.0",
)  # fmt: skip

#: Kernels for GPUs are interpreted, and compiled for GPUs that are not there.
TRITON = "triton==3.7.1"

LINT = "ruff==0.17.5"
METADATA = "twine==7.0.0"
FRONTEND = "build==1.6.1"
CHANGELOG = "towncrier==26.9.0"
TYPES = "mypy==2.4.1"
SITE = ("sphinx==9.0.4", "furo==2025.12.19", "myst-parser==5.2.0", "sphinx-copybutton==0.5.2")


def install_torch(session: nox.Session, torch: str = TORCH) -> None:
    """torch alone and first: everything after it must take the version that is there."""
    session.install(torch)


def install_packages(
    session: nox.Session, packages: Sequence[str] = PACKAGES, *, engines: bool = True
) -> None:
    """Our packages, editable, with the dependencies installed before."""
    needed = [need for name, needs in ENGINES_OF.items() if name in packages for need in needs]
    session.install(*BUILD, *CORE, *(needed if engines else ()))
    editable = [argument for name in packages for argument in ("-e", f"packages/{name}")]
    session.install("--no-deps", "--no-build-isolation", *editable)


def install_models(session: nox.Session, torchvision: str = TORCHVISION) -> None:
    """The model libraries of the tests, the demo and the benchmarks."""
    session.install(*MODELS, *MODELS_ALONE_NEED)
    session.install("--no-deps", torchvision, *MODELS_ALONE)


def install_tests(session: nox.Session) -> None:
    """What the tests import besides."""
    session.install(*TEST, *TEST_ALONE_NEED, OPENVINO, ZIG)
    session.install("--no-deps", *TEST_ALONE)


def install_all(session: nox.Session, *, models: bool = True, tests: bool = False) -> None:
    """What a session needs that runs our packages."""
    install_torch(session)
    install_packages(session)
    if models:
        install_models(session)
    if tests:
        install_tests(session)
        session.install("--no-deps", TRITON)


def install_on(session: nox.Session, torch: str, torchvision: str) -> None:
    """The same, with tests, on a supported version of torch."""
    install_torch(session, torch)
    install_packages(session)
    install_models(session, torchvision)
    install_tests(session)
    if torch == TORCH:  # may be a build for CPUs, which brings no Triton
        session.install("--no-deps", TRITON)


@nox.session
def demo(session: nox.Session) -> None:
    """Real models, eager beside compiled, as a table. Installs what it runs: another ``--backend``
    needs the others.
    """
    session.log("The models take 2 to 3 minutes on two free cores, the first installation longer.")
    if "--backend" in session.posargs:
        install_all(session)
    else:
        install_torch(session)
        install_packages(session, ("frontend-tracer", "inductor-backend"))
        install_models(session)
    session.run("python", "-m", "benchmarks", "demo", *session.posargs)


@nox.session
def ci(session: nox.Session) -> None:
    """lint, types, the site, tests and a tenth of tests-full, in one environment: .ci/run runs it."""
    # Most of what pip installs is never imported: what is, is compiled by its first import, and
    # kept for the processes that tests start. An empty PYTHONDONTWRITEBYTECODE counts as none.
    session.env.update(
        PIP_COMPILE="no", PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONDONTWRITEBYTECODE=""
    )
    session.install(LINT)
    run_lint(session)
    install_all(session, tests=True)
    session.install(TYPES, *SITE)
    # Each needs one processor; a failure of either ends the session.
    with ThreadPoolExecutor(2) as pool:
        for checked in [pool.submit(run_types, session), pool.submit(run_site, session)]:
            checked.result()
    # In one run: tests are collected once, and files with tests of both kinds share what they build.
    run_tests(session, EVERYTHING, "--share", "10")


#: How tests are chosen: by the markers of pyproject.toml, and by nothing else. CONTRIBUTING.md says
#: which test has which marker.
BEFORE_A_COMMIT = "not full and not gpu and not slow"
SWEEPS = "full and not gpu and not slow"
EVERYTHING = "not gpu and not slow"


@nox.session
def tests(session: nox.Session) -> None:
    """What a change can break, with a sample of each sweep: 20 to 25 minutes on two cores."""
    session.log("The tests take 20 to 25 minutes on two cores, after an installation of 1 to 5.")
    session.log("A failure is named as it comes; `nox -s quick` is a sample of two minutes.")
    install_all(session, tests=True)
    run_tests(session, BEFORE_A_COMMIT)


@nox.session
def quick(session: nox.Session) -> None:
    """Two minutes: a few tests of every folder, and the checks of words, limits, layers and links;
    without models and other engines. Another sample: ``nox -s quick -- --seed 1``."""
    session.log("The tests take two minutes on two cores, after an installation of 2 to 5.")
    install_torch(session)
    install_packages(session, engines=False)  # their tables of limits are checked, too
    session.install(*TEST)
    session.install("--no-deps", TRITON)
    session.env["PYTHONDONTWRITEBYTECODE"] = ""  # as in `run_tests`
    session.run("python", "-m", "tests.quick", *session.posargs)


@nox.session(name="tests-full")
def tests_full(session: nox.Session) -> None:
    """The rest: whole sweeps and models, several processes, mutation tests, pages that run."""
    install_all(session, tests=True)
    run_tests(session, SWEEPS)


def run_tests(session: nox.Session, chosen: str, *options: str) -> None:
    """A file's tests share what they have built, so one process runs them all; tests/conftest.py
    says which file is first, and prints how far the run is.
    """
    several = (
        "-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder",
        "--progress", "-o", "console_output_style=classic",
    )  # fmt: skip
    session.env["PYTHONDONTWRITEBYTECODE"] = (
        ""  # where it is set, each process that a test starts compiles our packages again
    )
    session.run("python", "-m", "pytest", "-m", chosen, *several, *options, *session.posargs)


def in_debian(chosen: str, version: str) -> None:
    """Adds the session ``chosen-version``: another session on a Python that needs another Debian,
    which `tools.debian_machine` makes and keeps (needs root).
    """

    @nox.session(name=f"{chosen}-{version}", venv_backend="none")
    def there(session: nox.Session) -> None:
        arguments = ("-s", chosen, "--", *session.posargs)
        session.run("python", "-m", "tools.debian_machine", version, *arguments)


for _chosen in ("tests", "package"):
    for _version in ("3.13", "3.14"):
        in_debian(_chosen, _version)


@nox.session(name="tests-aarch64", venv_backend="none")
def tests_aarch64(session: nox.Session) -> None:
    """`folder_sample` on an AArch64 processor that qemu emulates, in a Debian that
    `tools.debian_machine` makes and keeps (needs root); 20 times slower than this machine."""
    arguments = ("-s", "folder_sample", "--", *session.posargs)
    session.run(
        "python", "-m", "tools.debian_machine", "--architecture", "arm64", "3.11", *arguments
    )


@nox.session
def folder_sample(session: nox.Session) -> None:
    """A few tests of every folder, where all of them take too long: ``nox -s folder_sample --
    --count 8 --limit 600``, or some folders: ``-- guards inductor``. Resumable."""
    session.env.update(PYTHONDONTWRITEBYTECODE="")
    install_all(session, models=False, tests=True)
    session.run("python", "-m", "tests.folder_sample", *session.posargs)


@nox.session(name="tests-torch")
@nox.parametrize("torch", list(TORCH_ENDS))
def tests_torch(session: nox.Session, torch: str) -> None:
    """`tests` on the oldest and the newest versions of torch, before each release: ``nox -s
    tests-torch``, or one: ``nox -s "tests-torch(torch='2.15')"``. Whenever a private name of torch
    is used in another way, a sample: ``nox -s tests-torch -- --sample``."""
    tests_on(session, *TORCH_ENDS[torch])


@nox.session(name="tests-torch-between")
@nox.parametrize("torch", list(TORCH_BETWEEN))
def tests_torch_between(session: nox.Session, torch: str) -> None:
    """The same on the versions of torch between those."""
    tests_on(session, *TORCH_BETWEEN[torch])


def tests_on(session: nox.Session, torch: str, torchvision: str) -> None:
    """Installs torch and what fits it once, then runs the tests, whose result goes into the
    committed table.
    """
    session.env.update(PYTHONDONTWRITEBYTECODE="")
    install_on(session, torch, torchvision)
    session.run("python", "-m", "tests.torch_versions", *session.posargs)


@nox.session
def random_programs(session: nox.Session) -> None:
    """Random programs, eager and compiled: ``nox -s random_programs -- --count 20000 --start-seed 0
    --jobs 8``. Goes on from its state file (--out) where an earlier run stopped."""
    install_all(session, models=False)
    session.run("python", "-m", "tests.random_programs", *session.posargs)


@nox.session
def operator_programs(session: nox.Session) -> None:
    """Random programs of a few operators on tensors that break compilers, eager and compiled,
    judged by float64: ``nox -s operator_programs -- --count 50000 --start-seed 0 --jobs 8``. Goes on
    from its state file (--out) where an earlier run stopped."""
    install_all(session, models=False, tests=True)
    session.run("python", "-m", "tests.operator_programs", *session.posargs)


@nox.session
def random_graphs(session: nox.Session) -> None:
    """Random programs of what Triton kernels compute, by its interpreter beside eager: ``nox -s
    random_graphs -- --count 5000 --jobs 8``; with ``--build`` their machine code only. On a GPU:
    the module below, with ``--device cuda``."""
    install_all(session, models=False, tests=True)
    session.run("python", "-m", "tests.triton_kernels.random_graphs", *session.posargs)


@nox.session
def opinfo(session: nox.Session) -> None:
    """Every operator of PyTorch's OpInfo database against eager: ``nox -s opinfo -- --workers 16
    --out sweep.jsonl``. Goes on from its file where an earlier run stopped; ``python -m
    tests.opinfo.page`` makes docs/operators.md of it."""
    install_all(session, models=False, tests=True)
    session.run("python", "-m", "tests.opinfo", *session.posargs)


@nox.session
def cpython(session: nox.Session) -> None:
    """CPython's own tests, each method eagerly and compiled: ``nox -s cpython -- --jobs 8``. Goes
    on from benchmarks/results/cpython where an earlier run stopped; ``python -m
    tests.cpython.page`` makes docs/cpython.md of it."""
    install_all(session, models=False)
    session.run("python", "-m", "tests.cpython", *session.posargs)


@nox.session
def mutation_tests(session: nox.Session) -> None:
    """Faults planted in the tracer one by one: the tests must find each. Names of faults may
    be given.
    """
    install_all(session, tests=True)
    session.run("python", "-m", "tests.mutation_tests", *session.posargs)


@nox.session
def store_faults(session: nox.Session) -> None:
    """Faults of the store against real compiles: killed processes, damaged files, full disks, other
    owners, planted code, hostile names; best as root. Goes on from its state file (--state) where an
    earlier run stopped; ``--page benchmarks/results/store_faults/faults.json`` writes the table."""
    install_all(session, models=False)
    session.run("python", "-m", "tests.faults", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff over everything."""
    session.install(LINT)
    run_lint(session)


def run_lint(session: nox.Session) -> None:
    session.run("ruff", "check", ".")


@nox.session
def site(session: nox.Session) -> None:
    """The documentation site in build/site, warnings as errors, links looked up: a minute."""
    install_torch(session)
    install_packages(session)
    session.install(*SITE)
    run_site(session)


def run_site(session: nox.Session) -> None:
    session.run("python", "-m", "tools.site", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over the packages and the example plug-in."""
    install_all(session, models=False)
    session.install(TYPES)
    run_types(session)


def run_types(session: nox.Session) -> None:
    session.run("mypy", *(str(path) for path in sorted(ROOT.glob("packages/*/src/*/"))))
    session.run("mypy", "examples/third-party-backend/src/peephole_backend")


@nox.session
def size(session: nox.Session) -> None:
    """Code lines of each package; beside those of a commit: ``nox -s size -- --since main``."""
    session.run("python", "-m", "tools.code_size", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmark table: eager, torch.compile and ours, each row in a fresh process."""
    install_all(session)
    session.run("python", "-m", "benchmarks", "all", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Inference beside torch.compile, its freezing, ONNX Runtime and OpenVINO: each in a fresh
    process. Resumable.
    """
    install_all(session)
    session.install(*ENGINES)
    compared = ("eager", "torch", "torch+freeze", "onnxruntime", "openvino", "ours", "ours+freeze")
    groups = () if session.posargs else ("--groups", "peers")
    session.run(
        "python",
        "-m",
        "benchmarks",
        "steady",
        "--compilers",
        *compared,
        "--plot",
        *groups,
        *session.posargs,
    )


@nox.session
def cpu_tokens(session: nox.Session) -> None:
    """A token of language models on the CPU, by kind of weights, beside eager, torch.compile and
    llama.cpp. Resumable.
    """
    install_all(session)
    session.install(*TOKENS)
    compared = ("eager", "torch", "ours", "ours:freeze", "ours:generate", "llama.cpp")
    session.run(
        "python", "-m", "benchmarks", "cpu_tokens", "--compilers", *compared, *session.posargs
    )


@nox.session
def cpu_tokens_openvino(session: nox.Session) -> None:
    """The rows of OpenVINO beside those of `cpu_tokens`."""
    install_torch(session)
    session.install(TOKENS_OPENVINO)
    install_packages(session, PACKAGES[:1], engines=False)
    session.run(
        "python", "-m", "benchmarks", "cpu_tokens", "--compilers", "openvino", *session.posargs
    )


@nox.session
def auto(session: nox.Session) -> None:
    """Several backends on one model beside each backend alone, and the table that explains each
    choice. Resumable.
    """
    install_all(session)
    session.install(OPENVINO)
    session.run("python", "-m", "benchmarks", "auto", *session.posargs)


@nox.session
def engines(session: nox.Session) -> None:
    """onnxrt and tvm beside their engines used by hand, then with many batch sizes, large inputs
    and many threads.
    """
    install_all(session)
    session.run("python", "-m", "benchmarks", "engines", *session.posargs)
    session.run("python", "-m", "benchmarks", "engine_loads")


@nox.session
def tvm_tuning(session: nox.Session) -> None:
    """TVM's search with a stated budget; with the records that are there, only what they give:
    ``nox -s tvm_tuning -- --trials 512``."""
    install_all(session)
    session.install(*TUNING)
    session.run("python", "-m", "benchmarks", "tvm_tuning", *session.posargs)


@nox.session
def zoo(session: nox.Session) -> None:
    """More than a hundred small models: captured, equal to eager, first call beside
    torch.compile's. Resumable.
    """
    install_all(session)
    session.run("python", "-m", "benchmarks", "zoo", *session.posargs)


@nox.session
def ecosystem(session: nox.Session) -> None:
    """Programs of the libraries on top of PyTorch, eager, torch.compile and ours, each in a fresh
    process. Resumable; ``nox -s ecosystem -- --page`` writes docs/ecosystem.md."""
    install_all(session)
    session.install("--no-deps", *ECOSYSTEM_ALONE)
    session.run("python", "-m", "benchmarks", "ecosystem", *session.posargs)


@nox.session
def training(session: nox.Session) -> None:
    """Seven models trained for 20 steps: losses and gradients judged by float64, graphs, speed.
    Resumable.
    """
    install_all(session)
    session.run("python", "-m", "benchmarks", "training", *session.posargs)


@nox.session
def gradients(session: nox.Session) -> None:
    """One training step of every architecture of transformers, timm and torchvision, judged by
    float64 parameter by parameter. Goes on from its state file (--out) where an earlier run
    stopped; ``--page`` writes the table."""
    install_all(session, tests=True)
    session.run("python", "-m", "benchmarks", "gradients", *session.posargs)


def copied(name: str, builder: Path) -> Path:
    """Copies a package, so that no build folder of an earlier version can reach what is built; apart
    from the core's, so that a backend asks for the core by name and not for the folder beside it."""
    source = builder / name / "source"
    shutil.rmtree(source, ignore_errors=True)
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "packages" / name, source, ignore=ignored)
    return source


def try_wheels(session: nox.Session, folder: Path, builder: Path) -> str:
    """Installs the wheels of a folder, and nothing else of ours, into an empty environment, and runs
    the smoke test there. Returns the environment's Python."""
    empty = builder / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    session.run("python", "-m", "venv", str(empty))
    python = str(empty / "bin" / "python")
    install = (python, "-m", "pip", "install", "-q")
    session.run(*install, TORCH, external=True)
    # All at once: each other's files satisfy dependencies and extra, so no index is asked for them.
    (core,) = folder.glob("tracer_core-*.whl")
    backends = sorted(str(path) for path in folder.glob("*.whl") if path != core)
    session.run(*install, TORCH, f"{core}[all]", *backends, external=True)
    session.chdir(str(builder))  # away from the checkout: only what is installed can be imported
    # -I: nor what PYTHONPATH names
    session.run(python, "-I", str(ROOT / "tests" / "packaging" / "smoke.py"), external=True)
    session.chdir(str(ROOT))
    return python


@nox.session
def package(session: nox.Session) -> None:
    """Builds and checks the wheels, installs ``tracer-core[all]`` of them alone, and uses it; then
    the first rows of the demo with them.
    """
    wheels = ROOT / "dist"
    shutil.rmtree(wheels, ignore_errors=True)
    builder = Path(session.create_tmp()).resolve()
    session.install(*BUILD, METADATA)
    wheel = ("python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    for name in PACKAGES:
        session.run(*wheel, "-w", str(wheels), str(copied(name, builder)))
    built = sorted(str(path) for path in wheels.glob("*.whl"))
    if len(built) != len(PACKAGES):
        session.error(f"built {len(built)} wheels of {len(PACKAGES)}: {built}")
    session.run("python", "-m", "twine", "check", "--strict", *built)
    python = try_wheels(session, wheels, builder)
    install = (python, "-m", "pip", "install", "-q")
    session.run(*install, *MODELS, *MODELS_ALONE_NEED, external=True)
    session.run(*install, "--no-deps", TORCHVISION, *MODELS_ALONE, external=True)
    session.run(python, "-m", "benchmarks", "demo", "--models", *DEMO_FIRST, external=True)


@nox.session
def release(session: nox.Session) -> None:
    """What a release uploads: sdists and wheels of every package in dist/, from a commit without
    changes beside it, checked, tried in an empty environment, with SHA-256 sums. Uploads and signs
    nothing: CONTRIBUTING.md has the commands. ``-- --uncommitted`` tries the session itself."""

    def git(*arguments: str) -> str:
        return str(session.run("git", *arguments, external=True, silent=True)).strip()

    if git("status", "--porcelain") and "--uncommitted" not in session.posargs:
        session.error(
            "files are changed or new: commit them, so that the release is what a tag names"
        )
    folder, builder = ROOT / "dist", Path(session.create_tmp()).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    session.install(*BUILD, METADATA, FRONTEND)
    session.env["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct")  # the same bytes each time
    for name in PACKAGES:
        # First the sdist, then the wheel from it: an sdist that lacks a file has no wheel.
        build = ("python", "-m", "build", "--no-isolation", "--outdir", str(folder))
        session.run(*build, str(copied(name, builder)), silent=True)
    built = sorted(path for path in folder.iterdir())
    if sorted(path.suffix for path in built) != sorted((".gz", ".whl") * len(PACKAGES)):
        session.error(f"expected an sdist and a wheel of each package: {built}")
    session.run("python", "-m", "twine", "check", "--strict", *map(str, built))
    try_wheels(session, folder, builder)
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built
    )
    (folder / "SHA256SUMS").write_text(sums)
    session.log(f"dist/ of commit {git('rev-parse', 'HEAD')}; SHA256SUMS:\n{sums}")
    if not git("tag", "--points-at", "HEAD", "v*"):
        session.log("This commit has no tag v<version>: upload only what a tag names.")


@nox.session
def changelog(session: nox.Session) -> None:
    """Release notes in CHANGELOG.md, of the files in changes/; only printed: ``-- --draft``."""
    session.install(CHANGELOG)
    core = tomllib.loads((ROOT / "packages" / "frontend-tracer" / "pyproject.toml").read_text())
    session.run("towncrier", "build", "--version", core["project"]["version"], *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """The support matrices in docs/conformance/, on the newest torch: ``nox -s conformance`` for all
    backends, ``-- inductor`` for one.
    """
    install_on(session, *list(TORCH_ENDS.values())[-1])
    simulated = "Run on the simulated device of tests/cudagraphs, because there was no GPU."
    tried = {
        "eager": ("eager", ""),
        "aten_eager": ("aten_eager", ""),
        "inductor": ("inductor", ""),
        "cudagraphs": ("tests.conformance.simulated_cudagraphs:backend", simulated),
        "onnxrt": ("onnxrt", ""),
        "tvm": ("tvm", ""),
    }
    commit = str(
        session.run("git", "rev-parse", "--short=12", "HEAD", external=True, silent=True)
    ).strip()
    for name in session.posargs or tried:
        backend, note = tried[name]
        session.run("python", "-m", "tracer_core.testing.conformance", "--backend", backend,
        "--note", note,
                    "--page", f"docs/conformance/{name}.md", "--json",
                    f"docs/conformance/{name}.json",
                    "--resume", f"{session.create_tmp()}/{name}-{commit}.jsonl")  # fmt: skip
