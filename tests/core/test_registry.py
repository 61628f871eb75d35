"""Discovery, tried with real distributions laid on sys.path beside the installed polyattn."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from polyattn import loader, registry
from polyattn.errors import ConfigError, NameClash, Unavailable, UnknownName
from polyattn.registry import Registry, discover, load_target, read_manifest
from polyattn.spec import ComparisonSpec, OperationSpec, PresetSpec, VariantSpec

Install = Callable[..., None]

GOOD = """
    import polyattn

    @polyattn.hookimpl
    def polyattn_variants():
        yield polyattn.VariantSpec(name="{name}", target="{module}.code:Thing")
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("POLYATTN_REGISTRY", "")
    monkeypatch.delenv("POLYATTN_NO_PLUGINS", raising=False)
    registry._scan.cache_clear()
    yield
    registry._scan.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lay a distribution with one plugin module on sys.path, as an installer would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: list[str] = []

    def lay(distribution: str, source: str, *, entry: str = "main", **files: str) -> None:
        module = f"{distribution}_{entry}".replace("-", "_")
        package = tmp_path / module
        package.mkdir()
        (package / "__init__.py").write_text(dedent(source).replace("{module}", module))
        for name, text in files.items():
            (package / name.replace("__", ".")).write_text(dedent(text))
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n")
        points = info / "entry_points.txt"
        before = points.read_text() if points.exists() else "[polyattn]\n"
        points.write_text(f"{before}{entry} = {module}\n")
        modules.append(module)

    yield lay
    for module in modules:
        sys.modules.pop(module, None)


def reasons(found: Registry, label: str) -> list[str]:
    return [plugin.reason for plugin in found.unavailable if plugin.label == label]


def test_a_stranger_is_found_beside_the_built_in_plugin(install: Install) -> None:
    install("acme", GOOD.replace("{name}", "acme_attention"))
    found = discover()
    entry = found.find("acme_attention")
    assert (entry.distribution, entry.label) == ("acme", "acme:main")
    assert found.find("acme:acme_attention") is entry
    assert "acme_attention" in found.variants
    assert found.find("softmax").distribution == "polyattn"
    assert not found.unavailable


def test_two_plugins_of_one_entry_name_are_both_loaded(install: Install) -> None:
    install("acme", GOOD.replace("{name}", "first"), entry="mine")
    install("other", GOOD.replace("{name}", "second"), entry="mine")
    found = discover()
    assert found.find("first").label == "acme:mine"
    assert found.find("second").label == "other:mine"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("value = 1 +", "SyntaxError"),
        ("X = 1", "it has no hook"),
        ("def polyattn_variants(): yield", "'polyattn_variants' is not marked as a hook"),
        (
            """
            import polyattn
            @polyattn.hookimpl
            def polyattn_variants(): raise RuntimeError("boom")
            """,
            "RuntimeError: boom",
        ),
        (
            """
            import polyattn
            @polyattn.hookimpl
            def polyattn_variants(): pass
            """,
            "its hook returned None",
        ),
        (
            """
            import polyattn
            @polyattn.hookimpl
            def polyattn_variants(): yield "a name"
            """,
            "expected descriptors (VariantSpec, OperationSpec, PresetSpec, ComparisonSpec), "
            "got 'a name'",
        ),
        (
            """
            import polyattn
            @polyattn.hookimpl
            def polyattn_variants(registry): yield
            """,
            "PluginValidationError",
        ),
        (
            """
            import polyattn
            @polyattn.hookimpl
            def polyattn_variants():
                yield polyattn.VariantSpec(name="Bad Name", target="a:B")
            """,
            "name: expected a name of small letters, digits and '_', starting with a letter, "
            "got 'Bad Name'",
        ),
    ],
    ids=[
        "import", "exit", "syntax", "no hook", "unmarked", "raises", "none", "no descriptor",
        "signature", "bad name",
    ],
)  # fmt: skip
def test_a_broken_plugin_is_recorded_and_stops_nobody(
    install: Install, source: str, expected: str
) -> None:
    install("broken", source)
    install("works", GOOD.replace("{name}", "acme_attention"))
    found = discover()
    (reason,) = reasons(found, "broken:main")
    assert expected in reason
    assert found.find("acme_attention").distribution == "works"
    assert found.find("softmax").distribution == "polyattn"
    with pytest.raises(UnknownName, match=r"broken:main \("):
        found.find("what_it_would_have_brought")
    with pytest.raises(Unavailable, match="its plugin failed: broken:main"):
        found.find("broken:what_it_would_have_brought")


def test_what_came_before_an_error_in_a_generator_raises_when_asked_for(install: Install) -> None:
    install("broken", GOOD.replace("{name}", "halfway") + "        raise RuntimeError('late')\n")
    found = discover()
    assert reasons(found, "broken:main") == ["RuntimeError: late"]
    assert "halfway" in found.names()
    with pytest.raises(Unavailable, match=r"'halfway' cannot be used: .*RuntimeError: late"):
        found.find("halfway")


def test_every_misspelt_hook_is_recorded_and_the_right_one_still_works(install: Install) -> None:
    extra = """
    @polyattn.hookimpl
    def polyattn_variant(): yield

    @polyattn.hookimpl
    def polyattn_presets(): yield
    """
    install("acme", GOOD.replace("{name}", "acme_attention") + extra)
    found = discover()
    first, second = sorted(reasons(found, "acme:main"))
    assert "unknown hook 'polyattn_presets'" in first
    assert "unknown hook 'polyattn_variant', did you mean 'polyattn_variants'?" in second
    assert found.find("acme_attention")


def for_contract(number: int) -> str:
    source = GOOD.replace("{name}", "future")
    return source.replace('code:Thing"', f'code:Thing", api={number}')


@pytest.mark.parametrize(
    ("spoken", "asked", "said"),
    [
        ((1, 1), 99, "contract 99 and this polyattn speaks 1; upgrade polyattn, or install an "
         "older version of acme"),
        ((2, 3), 4, "contract 4 and this polyattn speaks 2 to 3; upgrade polyattn, or"),
        ((2, 3), 1, "contract 1 and this polyattn speaks 2 to 3; upgrade acme"),
        ((2, 3), 2, ""),
        ((2, 3), 3, ""),
    ],
)  # fmt: skip
def test_a_variant_written_for_another_contract_is_listed_as_unavailable(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    spoken: tuple[int, int],
    asked: int,
    said: str,
) -> None:
    monkeypatch.setattr(loader, "OLDEST_API", spoken[0])
    monkeypatch.setattr(loader, "API", spoken[1])
    install("acme", for_contract(asked))
    found = discover()
    assert "future" in found.names()
    assert not found.unavailable  # the plugin itself is fine
    if not said:
        assert found.find("future").distribution == "acme"
        return
    with pytest.raises(Unavailable, match=f"'future' cannot be used: .*{said}"):
        found.find("future")


@pytest.mark.parametrize("number", [0, -1, True, "'1'"])
def test_a_contract_has_a_number(install: Install, number: int) -> None:
    install("acme", for_contract(number))
    (reason,) = reasons(discover(), "acme:main")
    assert "api: expected the number of a contract, counted from 1, got " in reason


def test_a_missing_optional_package_makes_a_variant_unavailable(install: Install) -> None:
    source = GOOD.replace("{name}", "fast").replace(
        'code:Thing"', "code:Thing\", requires=('no_such_kernel',)"
    )
    install("acme", source)
    found = discover()
    assert not found.unavailable
    with pytest.raises(Unavailable, match="needs the package 'no_such_kernel'"):
        found.find("fast")


@pytest.mark.parametrize(
    ("package", "found_there"),
    [("explosive.part", True), ("explosive.other", False), ("explosive.part.deeper", False)],
)
def test_looking_for_an_optional_package_runs_nothing(
    install: Install, tmp_path: Path, package: str, found_there: bool
) -> None:
    home = tmp_path / "explosive"
    home.mkdir()
    (home / "__init__.py").write_text("raise SystemExit('a driver is missing')")
    (home / "part.py").write_text("")
    source = GOOD.replace("{name}", "fast").replace(
        'code:Thing"', f"code:Thing\", requires=('{package}',)"
    )
    install("acme", source)
    (entry,) = [entry for entry in discover().entries if entry.name == "fast"]
    assert (entry.reason == "") == found_there
    assert "explosive" not in sys.modules


def test_a_finder_that_raises_and_an_error_that_cannot_speak_stop_nobody(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "cursed":
                raise RuntimeError("planted")

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    source = GOOD.replace("{name}", "fast").replace(
        'code:Thing"', "code:Thing\", requires=('cursed',)"
    )
    install("acme", source)
    install(
        "mute",
        """
        class Mute(Exception):
            def __str__(self): raise ValueError("planted")
        raise Mute
        """,
    )
    found = discover()
    assert reasons(found, "mute:main") == ["Mute: it cannot say what is wrong"]
    with pytest.raises(Unavailable, match="needs the package 'cursed'"):
        found.find("fast")


def test_damaged_metadata_stop_nobody(install: Install, tmp_path: Path) -> None:
    install("acme", GOOD.replace("{name}", "fast"))
    (tmp_path / "acme-1.0.dist-info" / "METADATA").write_text("Version: 1.0\n")
    assert discover().find("fast").distribution == "unknown"


def test_a_clash_names_both_distributions_and_each_can_be_asked_for(install: Install) -> None:
    install("acme", GOOD.replace("{name}", "twin"))
    install("other", GOOD.replace("{name}", "twin"))
    found = discover()
    with pytest.raises(NameClash, match="acme and other; ask for 'acme:twin' or 'other:twin'"):
        found.find("twin")
    assert found.find("acme:twin").distribution == "acme"
    assert found.find("other:twin").distribution == "other"
    assert {"acme:twin", "other:twin"} <= set(found.names())
    assert "twin" not in found.variants


def test_a_name_declared_twice_by_one_distribution_is_a_clash(install: Install) -> None:
    install("acme", GOOD.replace("{name}", "twin"), entry="a")
    install("acme", GOOD.replace("{name}", "twin"), entry="b")
    with pytest.raises(NameClash, match="declared 2 times by acme:a and acme:b"):
        discover().find("twin")


def test_variants_operations_and_presets_share_one_name_space(install: Install) -> None:
    install("acme", GOOD.replace("{name}", "softmax"))
    with pytest.raises(NameClash, match="acme and polyattn"):
        discover().find("softmax")


def test_an_unknown_name_gives_the_closest_and_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"'sofmax', did you mean 'softmax'\?; known: softmax, "):
        discover().find("sofmax")
    with pytest.raises(UnknownName, match=r"if a plugin brings it, install that one here$"):
        discover().find("of_a_plugin")


def test_a_checkout_that_was_never_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_entry_points", tuple)
    with pytest.raises(UnknownName, match="no plugin found; for a checkout: `make`"):
        discover().find("softmax")


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_strangers_can_be_blocked(
    install: Install, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    install("acme", "raise RuntimeError('its code ran')")
    if by == "environment":
        monkeypatch.setenv("POLYATTN_NO_PLUGINS", "1")
    found = discover(plugins=by != "argument")
    assert found.find("softmax")
    assert not found.unavailable


def test_members_come_in_the_operation_order_and_strangers_last(install: Install) -> None:
    install(
        "acme",
        GOOD.replace("{name}", "aaa").replace('code:Thing"', "code:Thing\", operation='softmax'"),
    )
    found = discover()
    operation = found.find("softmax").spec
    assert isinstance(operation, OperationSpec)
    assert [entry.name for entry in found.members("softmax")] == [*operation.prefer, "aaa"]
    with pytest.raises(ConfigError, match="'dense' is no operation; operations: softmax"):
        found.members("dense")


def test_every_preferred_member_of_the_built_in_manifest_is_one() -> None:
    found = discover()
    for entry in found.operations.values():
        assert isinstance(entry.spec, OperationSpec)
        members = {member.name for member in found.members(entry.name)}
        assert set(entry.spec.prefer) <= members


def test_an_unknown_operation_is_recorded(install: Install) -> None:
    install(
        "acme",
        GOOD.replace("{name}", "aaa").replace('code:Thing"', "code:Thing\", operation='sotfmax'"),
    )
    (reason,) = reasons(discover(), "acme:main")
    assert reason == "aaa: unknown operation 'sotfmax', did you mean 'softmax'?"


def test_a_stranger_does_not_change_what_compare_runs(install: Install) -> None:
    source = """
        import polyattn
        from polyattn.spec import ComparisonSpec
        @polyattn.hookimpl
        def polyattn_variants():
            yield ComparisonSpec(variants=("mine",), baseline="mine")
    """
    before = discover().comparison
    registry._scan.cache_clear()
    install("acme", source)
    found = discover()
    assert before is not None
    assert found.comparison == before
    assert reasons(found, "acme:main") == [
        "comparison: polyattn:builtin already brings one; leave it out"
    ]


def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(dedent(text))
    monkeypatch.setenv("POLYATTN_REGISTRY", str(path))
    return path


def test_a_user_adds_presets_and_preferences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        operations: {softmax: {prefer: [dense]}}
        presets: {tiny: {variant: local_window, options: {left: 3, right: 0}}}
        comparison: {variants: [dense, tiny], baseline: dense}
    """
    user_file(tmp_path, monkeypatch, text)
    found = discover()
    preset = found.find("tiny")
    assert isinstance(preset.spec, PresetSpec)
    assert (preset.full_name, dict(preset.spec.options)) == ("user:tiny", {"left": 3, "right": 0})
    first, *rest = [entry.name for entry in found.members("softmax")]
    assert first == "dense"
    assert "sdpa" in rest
    assert found.comparison == ComparisonSpec(variants=("dense", "tiny"), baseline="dense")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", "the file: expected a mapping, got list"),
        ("variants: {x: {target: 'os:system'}}", "variants: unknown key; variants come from"),
        ("operations: {softmax: {config: 'os:x'}}", "operations.softmax.config: unknown key"),
        ("operations: {softmax: {prefer: dense}}", "operations.softmax.prefer: expected a list"),
        ("presets: {x: {variant: dense, optoins: {}}}", "presets.x.optoins: unknown key, did you"),
        ("presets: {x: {}}", "presets.x: expected the key 'variant', which is missing"),
        ("presets: {X: {variant: dense}}", "presets.X.name: expected a name of small letters"),
        ("presets: {}\npresets: {}", ":2: the key 'presets' comes twice"),
        ("comparison: {variants: [a], baseline: b}", "comparison.baseline: expected one of"),
    ],
)
def test_a_wrong_user_file_is_one_line_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    path = user_file(tmp_path, monkeypatch, text)
    with pytest.raises(ConfigError) as caught:
        discover()
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_named_user_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYATTN_REGISTRY", "/nowhere/mine.yaml")
    with pytest.raises(ConfigError, match=r"/nowhere/mine\.yaml: .*No such file"):
        discover()


def test_a_preferred_member_that_does_not_exist_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file(tmp_path, monkeypatch, "operations: {softmax: {prefer: [dens]}}")
    with pytest.raises(ConfigError, match="no member is called 'dens', did you mean 'dense'"):
        discover().members("softmax")


def test_a_preference_for_an_unknown_operation_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = user_file(tmp_path, monkeypatch, "operations: {softmx: {prefer: [dense]}}")
    (reason,) = reasons(discover(), str(path))
    assert "operations.softmx: unknown operation, did you mean 'softmax'?" in reason


MANIFEST = """
    variants:
      from_yaml: {target: "a.b:C", requires: [numpy], summary: one}
"""
MANIFEST_HOOK = """
    import polyattn

    @polyattn.hookimpl
    def polyattn_variants():
        yield from polyattn.read_manifest(__name__)
"""


def test_another_plugin_may_ship_a_manifest(install: Install) -> None:
    install("acme", MANIFEST_HOOK, registry__yaml=MANIFEST)
    spec = discover().find("from_yaml").spec
    expected = VariantSpec(name="from_yaml", target="a.b:C", requires=("numpy",), summary="one")
    assert spec == expected


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (None, "expected a manifest: "),
        ("../../registry.yaml", "the text of a symbolic link, '../../registry.yaml'"),
        ("variants: {x: {target: nonsense}}", "variants.x.target: expected 'package.module:Class'"),
        ("variants: {x: {target: 'a:B', kind: map}}", "variants.x.kind: expected 'sequence' or"),
        ("variants: {x: {target: 'a:B', api: one}}", "variants.x.api: expected the number"),
        ("variants: {x: [target]}", "variants.x: expected a mapping, got list"),
        ("varants: {}", "varants: unknown key, did you mean 'variants'?"),
    ],
)
def test_a_wrong_manifest_names_file_and_key(
    install: Install, manifest: str | None, expected: str
) -> None:
    files = {} if manifest is None else {"registry__yaml": manifest}
    install("acme", MANIFEST_HOOK, **files)
    (reason,) = reasons(discover(), "acme:main")
    assert "acme_main/registry.yaml: " in reason
    assert expected in reason


def test_the_built_in_manifest_is_the_file_at_the_root() -> None:
    root = Path(__file__).parents[2] / "registry.yaml"
    names = {getattr(spec, "name", None) for spec in read_manifest("polyattn_plugins")}
    assert names >= {"softmax", "dense", "local_window", "se"}
    assert all(f"  {name}:" in root.read_text() for name in names if name)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("no_such_package.x:Y", "cannot be imported: ModuleNotFoundError"),
        ("collections:OrderdDict", "no 'OrderdDict', did you mean 'OrderedDict'"),
    ],
)
def test_a_wrong_target_says_what_is_missing(target: str, expected: str) -> None:
    with pytest.raises(Unavailable, match=expected):
        load_target(target)


def test_a_target_is_loaded() -> None:
    assert load_target("pathlib:Path.home") == Path.home
