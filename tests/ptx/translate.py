"""Translate the PTX of one kernel to C that core.h runs.

Only the opcodes that Triton emits for our kernels are known; any other is an error, not a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

INT = {"s": "int", "u": "uint", "b": "uint"}


@dataclass
class Program:
    """A kernel in C.

    Attributes:
        name: the kernel's.
        threads: of a program.
        params: the bytes of each parameter.
        c: the text.
        where: the place in Triton's source of each line of the PTX.
    """

    name: str
    threads: int
    params: list[int]
    c: str
    where: dict[int, str] = field(default_factory=dict)


def translate(ptx: str) -> Program:
    name = re.search(r"\.visible \.entry (\w+)\(", ptx)[1]
    head, body = ptx[ptx.index(".entry") :].split("{", 1)
    base_line = ptx[: ptx.index(".entry")].count("\n") + head.count("\n") + 1
    params = [
        8 if p.endswith("64") else int(p[1:]) // 8
        for p in re.findall(r"\.param \.(u64|u32|b32|b64|f32|s32)", head)
    ]
    names = re.findall(r"(\w+_param_\d+)", head)
    threads = int(re.search(r"\.reqntid (\d+)", head)[1])
    regs = dict.fromkeys(("r", "rd", "rs", "p", "f"), 1)
    for cls, count in re.findall(r"%(\w+)<(\d+)>", body):
        if cls not in regs:
            raise SystemExit(f"register class {cls}")
        regs[cls] = int(count)
    assert regs["f"] == 1
    out: list[str] = []
    where: dict[int, str] = {}
    source = "?"
    resume = [0]

    def stop(line: int) -> str:
        resume[0] += 1
        return f"T->pc = {resume[0]}; return; case {resume[0]}:;"

    def reg(x: str) -> str:
        m = re.fullmatch(r"%(rd|rs|r|p)(\d+)", x)
        if m:
            return f"T->{m[1]}[{m[2]}]"
        raise SystemExit(f"register {x}")

    def val(x: str) -> str:
        x = x.strip()
        if x.startswith("0f"):
            return f"0x{x[2:]}u"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", x):
            return f"({x.rstrip('U')}LL)"
        if x == "%tid.x":
            return "((uint32_t)T->tid)"
        if x == "%ntid.x":
            return "((uint32_t)NTHREADS)"
        if x.startswith("%ctaid."):
            return f"C->id[{'xyz'.index(x[-1])}]"
        if x.startswith("%nctaid."):
            return f"L->grid[{'xyz'.index(x[-1])}]"
        if x == "global_smem":
            return "0u"
        return reg(x)

    def typed(x: str, t: str) -> str:
        kind, bits = t[0], int(t[1:])
        if kind == "f":
            assert bits == 32
            return f"ff({val(x)})"
        return f"(({INT[kind]}{bits}_t){val(x)})"

    def address(text: str) -> tuple[str, str]:
        m = re.fullmatch(r"\[\s*(%?\w+)\s*(?:\+\s*(-?\d+))?\s*\]", text.strip())
        if not m:
            raise SystemExit(f"address {text}")
        offset = m[2] or "0"
        if m[1] in names:
            return "param", m[1]
        if m[1] == "global_smem":
            return "shared", f"((uint64_t){offset}LL)"
        return "reg", f"((uint64_t)({reg(m[1])} + (int64_t){offset}))"

    def fits(t: str) -> str:
        return f"{INT[t[0]]}{t[1:]}_t" if t[0] != "f" else "uint32_t"

    def emit(op: str, args: list[str], line: int) -> str:
        parts = op.split(".")
        root, t = parts[0], parts[-1]
        a = args
        isf = t == "f32"
        z = (lambda e: f"ftz({e})") if "ftz" in parts else (lambda e: e)
        mark = f"T->line = {line}; "
        if root == "mov":
            if a[0].startswith("{"):
                low, high = (x.strip() for x in a[0].strip("{} ").split(","))
                half = int(t[1:]) // 2
                halves = [(low, "v"), (high, f"v >> {half}")]
                stores = "".join(f"{reg(x)} = {e}; " for x, e in halves if x != "_")
                return f"{{ uint64_t v = {val(a[1])}; {stores}}}"
            if a[1].startswith("{"):
                low, high = (x.strip() for x in a[1].strip("{} ").split(","))
                half = int(t[1:]) // 2
                high = f"(uint64_t)(uint{half}_t){val(high)} << {half}"
                return f"{reg(a[0])} = (uint{half}_t){val(low)} | {high};"
            if t == "pred":
                return f"{reg(a[0])} = ({val(a[1])}) != 0;"
            return f"{reg(a[0])} = ({fits(t)}){val(a[1])};"
        if (
            root in ("add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "div", "rem")
            and isf
        ):
            v = [z(typed(x, t)) for x in a[1:]]
            e = {
                "add": lambda: f"{v[0]} + {v[1]}",
                "sub": lambda: f"{v[0]} - {v[1]}",
                "mul": lambda: f"{v[0]} * {v[1]}",
                "fma": lambda: f"fmaf({v[0]}, {v[1]}, {v[2]})",
                "min": lambda: f"fmn({v[0]}, {v[1]})",
                "max": lambda: f"fmx({v[0]}, {v[1]})",
                "neg": lambda: f"-{v[0]}",
                "abs": lambda: f"fabsf({v[0]})",
                "div": lambda: f"{v[0]} / {v[1]}",
            }[root]()
            return f"{reg(a[0])} = fb({z(e)});"
        if root == "ex2":
            return f"{reg(a[0])} = fb({z('exp2f(' + z(typed(a[1], t)) + ')')});"
        if root in ("add", "sub"):
            u = "u" + t[1:]
            c = {"add": "+", "sub": "-"}[root]
            return f"{reg(a[0])} = ({fits(u)})({typed(a[1], u)} {c} {typed(a[2], u)});"
        if root in ("mul", "mad"):
            mode = parts[1]
            bits = int(t[1:])
            if mode == "lo":
                u = "u64" if bits > 16 else "u32"
                e = f"{typed(a[1], 'u' + t[1:])} * (uint64_t){typed(a[2], 'u' + t[1:])}"
                if root == "mad":
                    e = f"({e}) + {typed(a[3], 'u' + t[1:])}"
                return f"{reg(a[0])} = (uint{bits}_t)({e});"
            if mode == "wide":
                wide = f"{INT[t[0]]}{2 * bits}_t"
                e = f"({wide}){typed(a[1], t)} * ({wide}){typed(a[2], t)}"
                if root == "mad":
                    e = f"(uint{2 * bits}_t)({e}) + (uint{2 * bits}_t){val(a[3])}"
                return f"{reg(a[0])} = (uint{2 * bits}_t)({e});"
            if mode == "hi":
                assert bits == 32
                wide = f"{INT[t[0]]}64_t"
                e = f"({wide}){typed(a[1], t)} * ({wide}){typed(a[2], t)}"
                return f"{reg(a[0])} = (uint32_t)(({e}) >> 32);"
        if root in ("min", "max"):
            c = "<" if root == "min" else ">"
            x, y = typed(a[1], t), typed(a[2], t)
            e = f"({x} {c} {y} ? {x} : {y})"
            if "relu" in parts:
                return f"{{ {fits(t)} v = {e}; {reg(a[0])} = v < 0 ? 0 : v; }}"
            return f"{reg(a[0])} = {e};"
        if root in ("div", "rem"):
            x, y = typed(a[1], t), typed(a[2], t)
            if t in ("s32", "s16"):
                return f"{reg(a[0])} = (uint{t[1:]}_t)s{root}({x}, {y});"
            bad = f"({fits(t)})-1" if root == "div" else x
            return f"{reg(a[0])} = {y} == 0 ? {bad} : {x} {'/' if root == 'div' else '%'} {y};"
        if root == "neg":
            return f"{reg(a[0])} = (uint{t[1:]}_t)(0 - {typed(a[1], 'u' + t[1:])});"
        if root == "abs":
            e = f"v < 0 ? 0 - (uint{t[1:]}_t)v : v"
            return f"{{ {fits(t)} v = {typed(a[1], t)}; {reg(a[0])} = {e}; }}"
        if root in ("and", "or", "xor"):
            c = {"and": "&", "or": "|", "xor": "^"}[root]
            if t == "pred":
                return f"{reg(a[0])} = (({val(a[1])}) != 0) {c} (({val(a[2])}) != 0);"
            return f"{reg(a[0])} = {typed(a[1], t)} {c} {typed(a[2], t)};"
        if root == "not":
            return (
                f"{reg(a[0])} = !{val(a[1])};"
                if t == "pred"
                else f"{reg(a[0])} = ~{typed(a[1], t)};"
            )
        if root in ("shl", "shr"):
            bits = int(t[1:])
            x, n = typed(a[1], t), typed(a[2], "u32")
            if root == "shl":
                e = f"{n} >= {bits} ? 0 : (uint{bits}_t)({typed(a[1], 'u' + t[1:])} << {n})"
            elif t[0] == "s":
                e = f"(uint{bits}_t)({x} >> ({n} >= {bits} ? {bits - 1} : {n}))"
            else:
                e = f"{n} >= {bits} ? 0 : {x} >> {n}"
            return f"{reg(a[0])} = {e};"
        if root == "bfe":
            assert t in ("u32", "u64")
            n, k = typed(a[2], "u32"), typed(a[3], "u32")
            x = f"({typed(a[1], t)} >> {n})"
            e = f"{k} >= {t[1:]} ? {x} : {x} & (({fits(t)})1 << {k}) - 1"
            return f"{reg(a[0])} = {n} > {int(t[1:]) - 1} ? 0 : {e};"
        if root == "bfi":
            assert t == "b32"
            n, k = typed(a[3], "u32"), typed(a[4], "u32")
            m = f"((((uint64_t)1 << {k}) - 1) << {n})"
            e = f"((uint64_t){typed(a[1], t)} << {n}) & {m}"
            return f"{reg(a[0])} = ({typed(a[2], t)} & ~{m}) | ({e});"
        if root == "prmt":
            selector = int(a[3].rstrip("U"), 16)
            assert (t, selector & 0x8888) == ("b32", 0), (op, a)
            bytes_ = f"(uint64_t){typed(a[2], 'u32')} << 32 | {typed(a[1], 'u32')}"
            taken = [selector >> 4 * i & 7 for i in range(4)]
            e = " | ".join(f"(v >> {8 * k} & 255) << {8 * i}" for i, k in enumerate(taken))
            return f"{{ uint64_t v = {bytes_}; {reg(a[0])} = {e}; }}"
        if root == "setp":
            cmp = parts[1]
            assert len([p for p in parts if p not in ("setp", "ftz")]) == 2, op
            x, y = typed(a[1], t), typed(a[2], t)
            if isf:
                x, y = z(x), z(y)
            if cmp.endswith("u") and isf and cmp not in ("lu",):
                c = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[cmp[:-1]]
                return f"{reg(a[0])} = ({x} {c} {y}) || ({x} != {x}) || ({y} != {y});"
            if isf and cmp == "nan":
                return f"{reg(a[0])} = ({x} != {x}) || ({y} != {y});"
            if isf and cmp == "num":
                return f"{reg(a[0])} = ({x} == {x}) && ({y} == {y});"
            c = {
                "eq": "==",
                "ne": "!=",
                "lt": "<",
                "le": "<=",
                "gt": ">",
                "ge": ">=",
                "lo": "<",
                "hi": ">",
            }[cmp]
            e = f"({x} {c} {y})"
            if isf and cmp == "ne":
                e += f" && ({x} == {x}) && ({y} == {y})"
            return f"{reg(a[0])} = {e};"
        if root == "selp":
            u = "u32" if isf else t
            return (
                f"{reg(a[0])} = ({fits(u)})(({val(a[3])}) ? {typed(a[1], u)} : {typed(a[2], u)});"
            )
        if root == "cvt":
            kinds = [p for p in parts if re.fullmatch(r"[subf]\d+", p)]
            assert len(kinds) == 2, op
            d, s = kinds
            if d == "f32" and s[0] in "su":
                assert "rn" in parts
                return f"{reg(a[0])} = fb((float){typed(a[1], s)});"
            if s == "f32":
                assert (d, "rzi" in parts) == ("s32", True), op
                return f"{reg(a[0])} = (uint32_t)f2i({z(typed(a[1], s))});"
            assert "sat" not in parts
            return f"{reg(a[0])} = ({fits(d)}){typed(a[1], s)};"
        if root == "ld":
            _, where_ = address(a[1])
            if parts[1] == "param":
                i = names.index(where_)
                return f"{reg(a[0].strip('{} '))} = ({fits(t)})L->params[{i}];"
            count = {"v2": 2, "v4": 4}.get(parts[-2], 1)
            dst = [x.strip() for x in a[0].strip("{} ").split(",")]
            assert len(dst) == count
            kind = parts[1]
            ctype = fits("u" + t[1:])
            text = mark
            for i, x in enumerate(dst):
                cast = f"({fits(t)})" if t[0] == "s" else ""
                load = f"LD({kind}, T, {where_} + {i * int(t[1:]) // 8}, {ctype}, w)"
                text += f"{{ {ctype} w; {load}; {reg(x)} = {cast}w; }} "
            return text + "@STOP@"
        if root == "st":
            _, where_ = address(a[0])
            count = {"v2": 2, "v4": 4}.get(parts[-2], 1)
            src = [x.strip() for x in a[1].strip("{} ").split(",")]
            assert len(src) == count
            ctype = fits("u" + t[1:])
            text = mark
            for i, x in enumerate(src):
                text += f"ST({parts[1]}, T, {where_} + {i * int(t[1:]) // 8}, {ctype}, {val(x)}); "
            return text + "@STOP@"
        if root in ("atom", "red"):
            assert "global" in parts
            if root == "red":
                a = [None, *a]
            _, where_ = address(a[1])
            kind = parts[-2]
            ctype, v = fits(t), typed(a[2], t)
            e = {
                "min": f"o_ < {v} ? o_ : {v}",
                "max": f"o_ > {v} ? o_ : {v}",
                "add": f"o_ + {v}",
                "exch": v,
                "or": f"o_ | {v}",
                "and": f"o_ & {v}",
            }[kind]
            dst = reg(a[0]) if a[0] else "int ignored_ __attribute__((unused))"
            return f"{mark}ATOM({where_}, {ctype}, {dst}, {e}); @STOP@"
        if root == "shfl":
            assert (parts[1:3], a[0].count("|")) == (["sync", "bfly"], 0), op
            return (
                f"{mark}T->op = 1; T->arg = {val(a[1])}; T->lane_arg = {val(a[2])}; "
                f"T->mask = (uint32_t){val(a[4])}; "
                f"T->dst = &{reg(a[0])}; T->state = WAIT_WARP; @STOP@"
            )
        if root == "redux":
            op_ = {"max": 2, "min": 3, "add": 4}[parts[2]]
            assert t == "s32" or op_ == 4, op
            return (
                f"{mark}T->op = {op_}; T->arg = {val(a[1])}; T->mask = (uint32_t){val(a[2])}; "
                f"T->dst = &{reg(a[0])}; T->state = WAIT_WARP; @STOP@"
            )
        if root == "bar" and parts[1] == "warp":
            mask = f"T->mask = (uint32_t){val(a[0])}"
            return f"{mark}T->op = 6; {mask}; T->dst = 0; T->state = WAIT_WARP; @STOP@"
        if root in ("bar", "barrier"):
            assert a == ["0"], (op, a)
            return f"{mark}T->state = WAIT_BAR; C->waiting++; @STOP@"
        if root == "bra":
            return f"goto L_{a[0].strip('$')};"
        if root == "ret":
            return "T->state = DONE; C->done++; return;"
        raise SystemExit(f"opcode {op} {args}")

    depth = 1
    for number, raw in enumerate(body.split("\n")):
        line = base_line + number
        if re.match(r"\s*\.loc\b", raw):
            m = re.search(r"//\s*(\S+:\d+(?::\d+)?)(.*)", raw)
            if m:
                source = m[1] + (
                    " " + m[2].replace("[", "").replace("]", "").strip() if m[2].strip() else ""
                )
            continue
        text = raw.split("//")[0].strip()
        if text in ("{", "}"):
            depth += {"{": 1, "}": -1}[text]
            if depth == 0:
                break
            continue
        if not text or text.startswith("."):
            continue
        label = re.match(r"(\$?[\w$]+):(.*)", text)
        if label:
            out.append(f"L_{label[1].strip('$')}:;")
            text = label[2].strip()
            if not text:
                continue
        for one in filter(None, (s.strip() for s in text.split(";"))):
            where[line] = source
            guard = ""
            m = re.match(r"@(!?)(%p\d+)\s+(.*)", one)
            if m:
                guard = f"if ({'!' if m[1] else ''}{reg(m[2])}) "
            op, _, rest = (m[3] if m else one).partition(" ")
            op, tab, more = op.partition("\t")
            rest = (more + " " + rest).strip() if tab else rest.strip()
            args = [x.strip() for x in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
            c = emit(op, args, line)
            stops = "@STOP@" in c
            c = c.replace("@STOP@", "")
            c = f"{guard}{{ {c} }}"
            if stops:
                c += " " + stop(line)
            out.append(c)
    code = [
        f"#define NTHREADS {threads}",
        f"#define NR {regs['r']}",
        f"#define NRD {regs['rd']}",
        f"#define NRS {regs['rs']}",
        f"#define NP {regs['p']}",
        '#include "core.h"',
        "static void step(Cta *C, Thread *T) {",
        "switch (T->pc) { case 0:;",
        *out,
        "}",
        "T->state = DONE; C->done++; }",
    ]
    return Program(name, threads, params, "\n".join(code) + "\n", where)
