"""Build the lab's programs from Debian's packages, with a package state of its own: the system's stays as it is.

Debian has no kube-apiserver to install, but bookworm's source package `kubernetes` holds the whole tree. Built with bookworm's
Go 1.19, it needs two things that its own makefiles would do otherwise: a newer reflect2, since the vendored 1.0.1 crashes
under Go 1.18 and later, and the generated OpenAPI definitions, which the source package leaves out.
"""

from __future__ import annotations

import os
import platform
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specstudy.catalog.assets import Say
from specstudy.errors import AssetError, ConfigError
from specstudy.progress import duration_text
from specstudy.scaling.binaries import KUBERNETES_VERSION, missing
from specstudy.serving.server import log_tail, run_guarded

MIRROR_VARIABLE, MIRROR = "SPECSTUDY_DEBIAN_MIRROR", "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = {
    "bookworm": ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev", "etcd-server", "prometheus"),
    "trixie": ("kustomize",),  # bookworm has none; this one runs there
}
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
UNPACKED = ("etcd", "prometheus", "promtool", "kustomize")
ROOT_PACKAGE = "k8s.io/kubernetes"
REFLECT2 = "github.com/modern-go/reflect2"
OPENAPI = "pkg/generated/openapi"
FREE_GIB = 5


def check_platform() -> None:
    """Raises ConfigError, naming what is needed, where the programs can't be built."""
    lacking = [tool for tool in ("apt-get", "dpkg-deb", "nice") if shutil.which(tool) is None]
    if not KEYRING.is_file():
        lacking.append(str(KEYRING))
    machine = platform.machine()
    if platform.system() != "Linux" or lacking:
        raise ConfigError(
            "lab build",
            f"{platform.system()} {machine} without {', '.join(lacking) or 'Debian'}",
            "Debian 12 or newer with apt-get, dpkg-deb and debian-archive-keyring; elsewhere build in a debian:bookworm container and set "
            "SPECSTUDY_KUBERNETES_BIN to the folder of the programs",
        )


def make(folder: Path, log: Path, say: Say) -> None:
    """Fill `folder` with the programs; `log` keeps what apt and Go said. Raises AssetError with the log's last lines."""
    work = folder.with_name("work")
    if (free := shutil.disk_usage(folder.parent).free / 2**30) < FREE_GIB:
        raise AssetError(f"building needs {FREE_GIB} GiB in {folder.parent}, {free:.1f} are free")
    recipe = _Recipe(work, log, say)
    recipe.fetch()
    tree = recipe.unpack()
    folder.mkdir()
    recipe.compile(tree, folder)
    for name in UNPACKED:
        shutil.copy2(work / "root" / "usr" / "bin" / name, folder / name)
    if lacking := missing(folder):
        raise AssetError(f"the build made no {', '.join(lacking)}; its log: {log}")
    for name in UNPACKED:
        recipe.run([str(folder / name), "version" if name == "kustomize" else "--version"], f"trying {name}")


class _Recipe:
    def __init__(self, work: Path, log: Path, say: Say) -> None:
        self.work, self.log, self.say = work, log, say
        self.debs, self.source = work / "debs", work / "source"

    def run(self, argv: Sequence[str], what: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """One command at low priority, to its end; nothing of it outlives us."""
        self.say(what)
        command = ["nice", "-n", "10", *argv] if cwd is None else ["env", "-C", str(cwd), "nice", "-n", "10", *argv]
        told = 0.0

        def waiting(elapsed_s: float) -> None:
            nonlocal told
            if elapsed_s - told >= 60:
                told = elapsed_s
                self.say(f"    {what.partition(' (')[0]}: {duration_text(elapsed_s)}")

        status = run_guarded(command, {} if env is None else env, self.log, waiting)
        if status:
            raise AssetError(f"{what} failed with status {status}; {self.log} ends:\n{log_tail(self.log)}")

    def fetch(self) -> None:
        """Download what PACKAGES names, and the source."""
        for folder in (self.debs, self.source):
            folder.mkdir(parents=True)
        for suite, packages in PACKAGES.items():
            apt = self._apt(suite)
            self.run([*apt, "update"], f"reading Debian {suite}'s package lists")
            self.run([*apt, "download", *packages], f"fetching {', '.join(packages)}", cwd=self.debs)
        self.run([*self._apt("bookworm"), "source", "--download-only", "kubernetes"], "fetching the source of kubernetes", cwd=self.source)

    def _apt(self, suite: str) -> list[str]:
        """apt-get with sources, lists and cache of its own; a proxy that the system's apt is told of still holds."""
        state = self.work / "apt" / suite
        for folder in ("lists/partial", "archives/partial"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        mirror = os.environ.get(MIRROR_VARIABLE, MIRROR)
        (state / "sources.list").write_text("".join(f"{kind} [signed-by={KEYRING}] {mirror} {suite} main\n" for kind in ("deb", "deb-src")))
        (state / "status").touch()
        options = {
            "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": state,
            "Dir::State::lists": state / "lists",
            "Dir::State::status": state / "status",
            "Dir::Cache": state,
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",  # else a mirror that doesn't answer is a warning
        }
        return ["apt-get", "--quiet", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]

    def unpack(self) -> Path:
        """Unpack everything; the tree's folder, where Go looks for it in GOPATH mode."""
        for deb in sorted(self.debs.glob("*.deb")):
            self.run(["dpkg-deb", "--extract", str(deb), str(self.work / "root")], f"unpacking {deb.name}")
        archive = next(self.source.glob(f"kubernetes_*really{KUBERNETES_VERSION}.orig.tar.gz"), None)
        if archive is None:
            raise AssetError(f"Debian's source package isn't Kubernetes {KUBERNETES_VERSION}: {sorted(path.name for path in self.source.iterdir())}")
        parent = self.work / "gopath" / "src" / "k8s.io"
        parent.mkdir(parents=True)
        with tarfile.open(archive) as content:
            top = content.next()
            assert top is not None
            content.extractall(parent, filter="tar")
        tree = parent / "kubernetes"
        (parent / top.name.split("/")[0]).rename(tree)
        shutil.rmtree(tree / "vendor" / REFLECT2)
        shutil.copytree(self.work / "root" / "usr" / "share" / "gocode" / "src" / REFLECT2, tree / "vendor" / REFLECT2)
        return tree

    def compile(self, tree: Path, out: Path) -> None:
        """Generate the OpenAPI definitions, then build the four programs."""
        go = self.work / "root" / "usr" / "lib" / "go-1.19"
        env = {
            "GOROOT": str(go),
            "GOPATH": str(self.work / "gopath"),
            "GOCACHE": str(self.work / "go-cache"),
            "GOTMPDIR": "",
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "GOPROXY": "off",
            "CGO_ENABLED": "0",
            "PATH": f"{go / 'bin'}:{os.environ.get('PATH', '')}",
        }
        generator = str(self.work / "openapi-gen")
        self.run(["go", "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], "building openapi-gen", tree, env)
        packages = ",".join(f"{ROOT_PACKAGE}/{folder}" for folder in _openapi_folders(tree))
        boilerplate = str(tree / "vendor/k8s.io/code-generator/hack/boilerplate.go.txt")
        words = ["-i", packages, "-p", f"{ROOT_PACKAGE}/{OPENAPI}", "-O", "zz_generated.openapi", "-h", boilerplate, "-r", str(self.work / "violations")]
        self.run([generator, *words], "generating the OpenAPI definitions", tree, env)
        versions = ("vendor/k8s.io/component-base/version", "vendor/k8s.io/client-go/pkg/version")
        stamps = " ".join(f"-X {ROOT_PACKAGE}/{package}.gitVersion=v{KUBERNETES_VERSION}" for package in versions)
        command = ["go", "build", "-ldflags", f"-s -w {stamps}", "-o", f"{out}/", *(f"./cmd/{name}" for name in COMPONENTS)]
        self.run(command, f"building {', '.join(COMPONENTS)} {KUBERNETES_VERSION} (about 6 CPU-minutes)", tree, env)


def _openapi_folders(tree: Path) -> Iterator[str]:
    """Packages that ask for OpenAPI definitions, as Kubernetes' own makefile picks them; staged ones under vendor/."""
    staged = "staging/src/k8s.io"
    found = set[str]()
    for top in ("pkg", staged):
        for path in (tree / top).rglob("*.go"):
            name = path.parent.relative_to(tree).as_posix()
            if "testdata" in name or "/_" in name or name.startswith((f"{staged}/code-generator", f"{staged}/sample-apiserver")):
                continue
            if b"+k8s:openapi-gen=" in path.read_bytes():
                found.add(name.replace(staged, "vendor/k8s.io"))
    yield from sorted(found)
