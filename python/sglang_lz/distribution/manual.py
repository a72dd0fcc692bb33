"""The manual pages of ``sglang-lz``: for each command one line, and what `--help` says."""

MAIN = """\
SGLang with the LZ penalty: build, install, check and maintain the patched distribution.

Everything that is particular to the upstream release lies in patches/VERSION/: upstream.lock (the
sha256 of its wheels), judged (its modes that were looked at), series (the order of the patches) and
the patches, in groups:

  sampling, requests, server   the LZ penalty
  guard                        the loop guard
  proper                       proper tokens
  bench                        the LZ penalty in upstream's benchmark tools
  fixes                        repairs of upstream, for requests without a penalty too
  cpu                          lets the server start without a GPU

The tool needs git, and pip for what it downloads. It never imports sglang or torch."""

STATUS = """\
exit status:
  0  done, or all is well
  1  a check found something (lint, check, doctor, verify); each finding is a line of the output
  2  it could not be done; one sentence on standard error says why and what to do next
  130, 143  interrupted or terminated; nothing was changed"""

PAGES: dict[str, tuple[str, str, str]] = {
    "build": (
        "build the patched wheel from upstream's",
        """\
Build the one file that users install: upstream's wheel with the patches applied, sglang_lz and the
`sglang-lz` command inside, and a seal (sha256 of every file we touched) that `doctor` and the
server check.

Reads   patches/, the sglang_lz package, and upstream's wheel: --wheel, or the cache, or a download
        by pip. Its sha256 must be the pinned one.
Writes  OUT/sglang-VERSION+lzN-TAGS.whl (+lzN.cpu for the CPU flavour), in one rename at the end;
        what fails leaves nothing behind. The same input gives the same bytes. The path is the only
        line on standard output; the steps are on standard error.

The patches must fit exactly: the blob id of each file is checked before and after each patch, and a
hunk that would fit only with an offset is refused. The CPU flavour also has the `cpu` patches, the
`sgl_kernel` stand-in, and only the requirements that serving on a CPU needs. The CUDA flavour has
neither these nor the model of the benchmarks.""",
        """\
  sglang-lz build
  sglang-lz build --flavour cpu --out wheels
  sglang-lz build --python cp312 --arch aarch64
  sglang-lz build --flavour cpu --groups cpu     stock SGLang (+lz0.cpu), to compare with""",
    ),
    "apply": (
        "patch an installed sglang, or a checkout of upstream, in place",
        """\
Patch the sglang in TARGET and put the sglang_lz package beside it: all of it or, if anything does
not fit exactly, nothing.

Reads   patches/ and TARGET: a site-packages folder, a checkout of upstream's repository, or by
        default the sglang that this Python would import (it is located, not imported).
Writes  in TARGET: the patched files, sglang_lz/ with its seal, and for an installed sglang its
        version, METADATA and RECORD, so that pip shows and uninstalls what is there. The .dist-info
        folder keeps its name, and no `sglang-lz` command is installed: use `python -m sglang_lz`.

Refused: another version than the pinned one, edited files, a tree that is half patched.""",
        """\
  sglang-lz apply
  sglang-lz apply ~/src/sglang
  sglang-lz apply .venv/lib/python3.12/site-packages""",
    ),
    "revert": (
        "take the patches off again",
        """\
Undo `sglang-lz apply`, byte for byte: all of it or, if anything there was changed since, nothing.
An sglang that was installed from our wheel was never unpatched; install upstream's instead.

Reads   TARGET and the patches and seal that `apply` left in its sglang_lz/.
Writes  in TARGET: upstream's files as they were; sglang_lz/ is removed.""",
        """\
  sglang-lz revert
  sglang-lz revert ~/src/sglang""",
    ),
    "doctor": (
        "say whether an sglang is ours, whole and matching",
        """\
Check the sglang that this Python would import, or a wheel file, one line a check: `ok` or `FAIL`,
and what was found. Nothing is imported, changed or downloaded.

  sglang, wheel  it is there and can be read        version   seal and METADATA agree
  seal           it has our seal                    files     every sealed file has its sha256
  package        sglang_lz is the sealed version    patches   the carried patches are those sealed,
                                                              and make the files what they are
  installed:     sglang_lz (CPU flavour: sgl_kernel) is imported from there, no rival kernel package
  --wheel:       RECORD lists exactly the files; the file name fits""",
        """\
  sglang-lz doctor
  sglang-lz doctor --wheel dist/sglang-0.5.23+lz1-cp312-cp312-manylinux_2_34_x86_64.whl""",
    ),
    "verify": (
        "check files of a release against its signature",
        """\
Check that each FILE is of a release that the holder of a key has signed. Needs no network, and the
package py-minisign.

Reads   FILE, and beside it what `scripts/release` makes: SHA256SUMS, SHA256SUMS.minisig and, for a
        wheel, its SBOM (FILE.cdx.json) and provenance.json.
Writes  nothing, except a line for each check that begins with ok or FAIL:

  signature      of SHA256SUMS, by this key; if it fails, nothing else is checked
  sha256         SHA256SUMS lists FILE with it; if it fails, nothing else of FILE is checked
  SBOM           a wheel: it is of the release, and describes this file
  provenance     a wheel: it is of the release, and names this file
  wheel and on   a wheel: what `doctor --wheel` checks

A file that the release should have beside FILE and has not is a FAIL, or exit status 2 where
nothing can be checked without it.""",
        """\
  sglang-lz verify release/*.whl --public-key sglang-lz.pub
  sglang-lz verify sglang-0.5.23+lz1-cp312-cp312-manylinux_2_34_x86_64.whl --public-key RWQ...""",
    ),
    "serve": (
        "start the server of the installed sglang",
        """\
Start `sglang.launch_server` on 127.0.0.1:30000, in place of this process. All arguments are the
server's, and win over what this command sets: host and port, on the CPU flavour float32 and a small
cache, and without --model-path the demo model, under the name "demo". With --config it sets none.

  --end-loops   end loops in every request that says nothing else: the recommended lz_penalty and
                lz_onset, and behind them the loop guard. It sets --preferred-sampling-params, where
                your own keys win. A mode without the penalty or the guard refuses it at the start.
  --playground  also serve the page of `sglang-lz playground`, on its default port; it ends with the
                server.

Arguments that the server cannot start with, such as an unknown one, a path that does not exist or a
port in use, end in one sentence on standard error and exit status 2. Several ranks on a CPU divide
its cores among them.

Reads   the environment variables SGLANG_LZ_HOST and SGLANG_LZ_PORT, for 127.0.0.1 and 30000, and
        SGLANG_CPU_OMP_THREADS_BIND, upstream's own, for the cores of each rank, as in 0,1|2,3.
Writes  nothing itself.""",
        """\
  sglang-lz serve
  sglang-lz serve --end-loops --model-path Qwen/Qwen2.5-1.5B-Instruct --port 8000
  python -m sglang.launch_server --help     the server's own arguments""",
    ),
    "loops": (
        "find loops in past outputs and suggest a setting",
        """\
Look for loops in past outputs, by the definition of the request field repetition_detection, and say
how many outputs hold one or end in one, how many tokens they took, and which setting to try.

Reads   FILE, or standard input for -, gzip included. What a file holds is told by how it begins:
        JSON    records one after the other, or in an array: token ids (output_ids, token_ids,
                response_token_ids, tokens), a text (text, output, response, completion, content,
                with the reasoning before it), an answer of an API or of a batch, or a sample of
                lm_eval --log_samples.
        a log   of SGLang with --log-requests --log-requests-level 3 in either format (level 2
                leaves out the middle of long outputs, which the report says; 1 and 0 leave out
                all), or of vLLM with --enable-log-outputs (--max-log-len may leave out ends).
        a text  of one output; not on standard input, and not in .json, .jsonl and .ndjson.
        Of a text, words and runs of one sign take the place of tokens. If these do not loop, its
        characters do. Up to a length, what correct text repeats is no loop: 280 characters of
        signs alone, as in rules of tables; within a word, 128 of one ASCII letter or digit and 80
        of several, as in encoded data; 50 emoji that end a line. The report says what was counted.
        A file that cannot be read to its end, or that holds no output, ends in an error: exit
        status 2, and no report. So does a record of more than 33,554,432 characters.
Writes  nothing. The report names files, lines and numbers, and shows none of the text.

The setting is by default the recommended one: patterns of up to 512 tokens, 20 copies.""",
        """\
  sglang-lz loops answers.jsonl
  sglang-lz loops --min-count 8 --json answers.jsonl.gz server.log""",
    ),
    "playground": (
        "show in a browser what the penalty does to an output, and why",
        """\
Serve one page on this machine. It runs a prompt without a penalty, with one that you know and with
the LZ penalty, side by side, and marks what each token lost and the earlier copy that is the
reason. It also shows what a setting would do to a text of yours, and the outputs of a log that
loop. What it says about the LZ penalty is computed by the penalty's reference.

Reads   the server at --server, and no other. If none answers, the page shows a recorded session.
Writes  nothing, or with --record a session of its first example, which `page/session.json` is, or
        with --save the page and a session as one file.

It listens on the loopback address unless --host says otherwise, has no password, and answers only
to its own page at that address. Its files need no other host.""",
        """\
  sglang-lz playground
  sglang-lz playground --server http://127.0.0.1:8000 --port 30081""",
    ),
    "lint": (
        "check the patch files by themselves",
        """\
Check patches/ without upstream's files: the series lists every patch once and no other, every patch
parses, modifies only .py files of sglang, has full blob ids that follow on each other, and a header
with Subject, Why, Upstream and Remove-when; no added line ends with a blank; the set is within its
budget (sglang_lz/distribution/lint.py).

Reads   patches/. Writes nothing; prints one line a finding.""",
        """\
  sglang-lz lint""",
    ),
    "check": (
        "check the patches against upstream",
        """\
Lint the patches, apply them to the pinned upstream, export them again and compare: the committed
bytes must be those that `export` writes. Prints `git diff --stat` of all patches together.

Reads   patches/ and upstream's wheel, as `build` does. Writes nothing but the cache.""",
        """\
  sglang-lz check""",
    ),
    "checkout": (
        "turn the patches into git commits, to edit them",
        """\
Make DIR a git repository: upstream's .py files under the tag `upstream`, and on the branch
`patches` one commit a patch. Edit with plain git (commit --amend, rebase -i upstream, reorder,
drop), then `sglang-lz export DIR`.

A commit message is the patch's header, and its line `Patch: group/name.patch` says which patch file
it is; a new commit needs one too:

  Call the penalizer before sampling

  Why: what needs this change, and why it cannot be done from the package;
   a line that begins with a space continues the field.
  Upstream: not for upstream (or an issue)
  Remove-when: upstream calls registered penalizers itself

  Patch: sampling/call-penalizer.patch

Reads   patches/ and upstream's wheel, as `build` does. Writes DIR, which must be new or empty.""",
        """\
  sglang-lz checkout /tmp/lz""",
    ),
    "export": (
        "write the commits back as patches",
        """\
Write the commits after the tag `upstream` in DIR to patches/VERSION/, and their order to its
series.
The same commits give the same bytes, whoever made them and whenever. Patches without a commit are
removed. Nothing is written if a commit has no `Patch:` line, if there are uncommitted changes, or
if the result would not pass `lint`.

Reads   DIR, made by `checkout`. Writes patches/VERSION/, of the release that DIR is of.""",
        """\
  sglang-lz export /tmp/lz""",
    ),
    "bump": (
        "carry the patches to the next upstream release",
        """\
Carry the patches to upstream's release VERSION: pin its wheels, pick the commits one by one, and
hold the result against the release. Prints how each patch was carried:

  clean          git carried it
  beside         upstream changed lines beside ours; both changes were put together. Look at each.
  conflict       the lines themselves were changed, or the file is gone: stops here. Settle it and
                 go on with --continue, or leave the patch out with --skip.
  there already  the release has what the patch does; it is left out

Then: every changed file compiles and uses no name that is not defined; each selection of groups
applies; what our package and tests import, call and read of upstream is there; and each server
argument and speculative algorithm was judged (patches/VERSION/judged).

--dry-run prints all this for a work tree that it throws away.

Reads   pip's index, patches/ and our own sources.
Writes  DIR, a git work tree, and at the end patches/VERSION/, which replaces the folder of the old
        release. --dry-run: only the cache.""",
        """\
  sglang-lz bump 0.5.24 --dry-run
  sglang-lz bump 0.5.24
  sglang-lz bump 0.5.24 --continue
  sglang-lz bump 0.5.24 --continue --skip""",
    ),
}
