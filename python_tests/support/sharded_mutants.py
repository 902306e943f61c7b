# SPDX-License-Identifier: Apache-2.0
"""Mutants that combine the ranks' results wrongly: name -> (file, its text, the mutant's text)."""

MUTANTS = {
    "the first rank's total in place of its chunks": (
        "cpu/row_stats.cpp",
        "total.sum += sum_[c];",
        "if (task_ && c == task_->split.first[1]) total.sum = float(total.sum);\n    total.sum += sum_[c];",
    ),
    "an id that counts from its shard": (
        "cpu/row_executor.cpp",
        "const int64_t id = chunk * kChunk + drawn.within;",
        "const int64_t id = (chunk - task_->split.begin(chunks_)) * kChunk + drawn.within;",
    ),
    "a cutoff found on one rank": (
        "cpu/row_filters.cpp",
        "std::vector<float> some(task_->split.ranks() * k);",
        "std::vector<float> some(k);",
    ),
    "sigma of the first rank's entries": (
        "cpu/row_filters.cpp",
        "for (const Spread& x : parts) all.add(x);",
        "for (int64_t c = 0; c < chunks_; ++c)\n    if (!task_ || !task_->split.owner(c)) all.add(parts[c]);",
    ),
    "sums of a row under the penalties of another position": ("cpu/shards.cpp", "view.position};", "0};"),
    "sums of a row with the bias of another request": ("cpu/shards.cpp", "          bias,\n", "          0,\n"),
    "penalised entries rounded as the row's are": ("cpu/shards.h", "row.view ? kFloat32 : row.dtype", "row.dtype"),
    "a penalised id that counts from its shard": (
        "cpu/row_reader.h",
        "seen_entry(row.view, v, [&]",
        "seen_entry(row.view, place(row, v), [&]",
    ),
}


FILE = "specdec_kernels/distributed/whole_rows.py"
WHOLE_ROWS = {
    "requests that are not there counted from the batch's first": (FILE, "x.clamp(begin, end) - begin", "x"),
    "slices side by side from the last rank's": (FILE, "zip(parts, out.split", "zip(parts[::-1], out.split"),
    "a rank's requests are those of the next": (
        FILE,
        "begin, end = shares[shards.rank]",
        "begin, end = shares[shards.rank - 1]",
    ),
    "padding of a short share kept": (FILE, "own[: end - begin]", "own"),
    "the first lists of the batch": (
        FILE,
        "numbers = torch.arange(count, ",
        "numbers = torch.zeros(count, dtype=int, ",
    ),
    "a tree of all requests split among them": (FILE, "known.is_cut(x.dim()) and ", ""),
}
