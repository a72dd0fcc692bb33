"""Draft trees of speculative decoding: their shape, and which of their tokens are accepted.

Shapes: B requests with one tree of N nodes each. Node 0 is the root, a token that has already been
sampled. Every other node is a draft token that may follow its parent, and comes after its parent in
the order of nodes. Children form a linked list: `next_token` of a node is its first child, and
`next_sibling` is the next child of the same parent; -1 if there is none.

The signatures are those of the kernels, and these arguments mean the same in each. Functions that
make trees write the second group, functions that accept nodes read it and write the first:

    predicts: (B * N,) int32, at every accepted node: the token that follows it.
    accept_index: (B, D) int32, preset to -1: numbers of the accepted nodes, the root's first; D
        bounds the length of a path.
    accept_token_num: (B,) int32: how many are accepted without the root.

    positions: (B * N,) int, position of every node; verified_seq_len: (B,) int, that of the root.
    retrive_index: (B, N) int64, number of every node in the batch.
    retrive_next_token, retrive_next_sibling: (B, N) int64, the links.
    candidates: (B, N) int, token of every node.
    tree_mask: (B * N * N,) bool, [i, j] = node i sees node j, itself included.
"""
# ruff: noqa: PLR0917 (the signatures are those of the kernels)

import torch

QLEN_ONLY = 1
"""SGLang's name for tree masks of N x N: they leave out the tokens before the tree."""


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Take each request's last accepted token.

    Args:
        accept_tokens: (B * accept_stride,) int in any shape, row by row.
        accept_lens: (B,) int >= 1, how many of a row are accepted.
        bonus_tokens: (B,) int, written.
        accept_stride: width of a row of `accept_tokens`.
    """
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last])


def rotate_input_ids_cpu(*_: object) -> None:
    """Upstream imports it for drafts of several layers, which never ran on a CPU."""
    raise NotImplementedError("--enable-multi-layer-eagle: not supported on a CPU")


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Make trees of the drafted tokens that were selected out of all that the draft proposed.

    Proposals are numbered step by step: `topk` of the first step, then `topk * topk` of each later
    one, `topk` for each of the tokens from which the draft continued. A node whose parent was not
    selected (scores can tie) gets no parent, so it is never accepted.

    Args:
        parent_list: (B, P) int64; entry g > 0 is the proposal that the group g of `topk` follows.
        selected_index: (B, N - 1) int64, ascending: the proposal that is node 1, 2, ...
        topk: proposals that follow one token.
        depth: steps of the draft, not used here: the parents say it.
        draft_token_num: N.
        tree_mask_mode: must be QLEN_ONLY.

    Raises:
        NotImplementedError: another mode.
    """
    if int(tree_mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"tree masks of mode {int(tree_mask_mode)} on a CPU")
    batch, drafted = selected_index.shape
    group = selected_index // topk
    padded = torch.cat([parent_list, parent_list.new_full((batch, 1), -1)], 1)  # it may be empty
    proposal = padded.gather(1, group.clamp(max=parent_list.shape[1]))
    is_parent = selected_index[:, None, :] == proposal[:, :, None]
    parent = torch.where(is_parent.any(2), is_parent.int().argmax(2) + 1, -1)
    parent = torch.where(group == 0, 0, parent)
    parent = torch.cat([parent.new_full((batch, 1), -1), parent], 1)

    sees = torch.eye(draft_token_num, dtype=torch.bool).repeat(batch, 1, 1)
    rows = torch.arange(batch)
    for node in range(1, drafted + 1):
        above = parent[:, node]
        sees[:, node] |= sees[rows, above.clamp(min=0)] & (above >= 0)[:, None]
    reconstruct_indices_from_tree_mask(
        sees,
        verified_seq_len,
        positions,
        retrive_index,
        retrive_next_token,
        retrive_next_sibling,
        batch,
        draft_token_num,
    )
    sees[:, :, 0] = True  # of a node without parent as well
    tree_mask.copy_(sees.view(tree_mask.shape))


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Find positions and links of trees that are given by their masks, where only j < i counts."""
    shape = (batch_size, draft_token_num, draft_token_num)
    ancestors = tree_mask.view(shape).bool().tril(-1)
    order = torch.arange(draft_token_num)
    parent = torch.where(ancestors, order, -1).amax(2)
    child_of = parent[:, :, None] == order  # [i, j]: node i is a child of node j
    first_child = torch.where(child_of, order[:, None], draft_token_num).amin(1)
    related = (parent[:, :, None] == parent[:, None, :]) & (parent >= 0)[:, :, None]
    later = order > order[:, None]
    next_sibling = torch.where(related & later, order, draft_token_num).amin(2)

    places = verified_seq_len.long()[:, None] + ancestors.sum(2)
    positions.copy_(places.view(positions.shape))
    retrive_index.copy_(torch.arange(batch_size * draft_token_num).view(retrive_index.shape))
    for found, output in ((first_child, retrive_next_token), (next_sibling, retrive_next_sibling)):
        output.copy_(torch.where(found == draft_token_num, -1, found).view(output.shape))


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk down from each root as long as a child is the token that the target model predicts.

    `target_predict` is (B, N) int, the token that the target model predicts after every node.
    """
    trees = (candidates, target_predict, retrive_next_token, retrive_next_sibling)
    paths = []
    for tokens, predicted, first_child, sibling in zip(
        *(tree.tolist() for tree in trees), strict=True
    ):
        path = [0]
        while len(path) < accept_index.shape[1]:
            node = first_child[path[-1]]
            while node >= 0 and tokens[node] != predicted[path[-1]]:
                node = sibling[node]
            if node < 0:
                break
            path.append(node)
        paths.append(path)
    last = target_predict[torch.arange(len(paths)), [path[-1] for path in paths]]
    write_paths(paths, last, candidates, retrive_index, predicts, accept_index, accept_token_num)


def write_paths(
    paths: list[list[int]],
    last: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
) -> None:
    """Write the path of accepted nodes of each tree, and the token (B,) int that ends it."""
    for request, path in enumerate(paths):
        numbers = retrive_index[request, path]
        accept_index[request, : len(path)] = numbers.to(accept_index.dtype)
        accept_token_num[request] = len(path) - 1
        tokens = torch.cat([candidates[request, path[1:]], last[request, None]])
        predicts[numbers] = tokens.to(predicts.dtype)
