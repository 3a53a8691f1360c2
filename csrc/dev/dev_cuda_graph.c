/* Recording, launching and counting graphs; branches; timing events. */
#include "base/fault.h"
#include "base/mem.h"
#include "dev/dev_cuda_impl.h"

struct sk_dev_graph {
    int32_t index;
    cudaGraphExec_t exec;
    int64_t n_nodes, n_edges, n_programmatic;
};

/* Fills the counts from at most `cap` edges; *full when there may be more of them. Never asks for
 * the number alone: without room for the kinds that question may be refused as losing them. */
static sk_code count_edges(sk_dev_graph *g, cudaGraph_t graph, size_t cap, bool *full,
                           sk_status *st)
{
    void *ends = NULL;
    void *kinds = NULL;
    cudaGraphEdgeData *kind;
    cudaGraphNode_t *end;
    size_t n = cap;
    sk_code rc = sk_mem_new(&ends, 2 * cap, sizeof(cudaGraphNode_t), "graph edges", st);
    if (rc == SK_OK) rc = sk_mem_new(&kinds, cap, sizeof *kind, "graph edges", st);
    end = ends;
    kind = kinds;
    if (rc == SK_OK)
        rc =
            sk_dev_try(cudaGraphGetEdges(graph, end, end + cap, kind, &n), "cudaGraphGetEdges", st);
    if (rc == SK_OK) {
        *full = n >= cap;
        g->n_edges = (int64_t)n;
        g->n_programmatic = 0;
        for (size_t i = 0; i < sk_min_size(n, cap); i++)
            g->n_programmatic += kind[i].type == cudaGraphDependencyTypeProgrammatic;
    }
    sk_mem_free(kinds);
    sk_mem_free(ends);
    return rc;
}

static sk_code count(sk_dev_graph *g, cudaGraph_t graph, sk_status *st)
{
    size_t nodes = 0;
    bool full = true;
    SK_TRY(sk_dev_try(cudaGraphGetNodes(graph, NULL, &nodes), "cudaGraphGetNodes", st));
    g->n_nodes = (int64_t)nodes;
    for (size_t cap = 2 * nodes + 16; full; cap *= 2) SK_TRY(count_edges(g, graph, cap, &full, st));
    return SK_OK;
}

/* The recorded graph in *out, NULL on failure. */
static sk_code record(sk_dev *d, sk_code (*body)(void *ctx, sk_status *st), void *ctx,
                      cudaGraph_t *out, sk_status *st)
{
    cudaError_t e;
    sk_code rc;
    // Thread-local: what other threads do with the device meanwhile does not concern us.
    e = SK_FAULT() ? cudaErrorUnknown
                   : cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal);
    SK_TRY(sk_dev_try(e, "cudaStreamBeginCapture", st));
    d->recording = true;
    rc = body(ctx, st);
    d->recording = false;
    e = cudaStreamEndCapture(d->stream, out);
    if (rc == SK_OK) rc = sk_dev_try(e, "cudaStreamEndCapture", st);
    return rc;
}

static sk_code instantiate(sk_dev *d, sk_dev_graph *g, cudaGraph_t graph, sk_status *st)
{
    SK_TRY(count(g, graph, st));
    SK_TRY(sk_dev_try(cudaGraphInstantiate(&g->exec, graph, 0), "cudaGraphInstantiate", st));
    SK_TRY(sk_dev_try(cudaGraphUpload(g->exec, d->stream), "cudaGraphUpload", st));
    return sk_dev_sync(d, st);
}

sk_code sk_dev_capture(sk_dev *d, sk_code (*body)(void *ctx, sk_status *st), void *ctx,
                       sk_dev_graph **out, sk_status *st)
{
    cudaGraph_t graph = NULL;
    sk_dev_graph *g;
    void *p;
    sk_code rc;
    SK_TRY(sk_dev_use_live(d, "recording", st));
    SK_TRY(sk_mem_new(&p, 1, sizeof *g, "graph", st));
    g = p;
    g->index = d->index;
    rc = record(d, body, ctx, &graph, st);
    if (rc == SK_OK) rc = instantiate(d, g, graph, st);
    if (graph) (void)cudaGraphDestroy(graph);
    if (rc != SK_OK) {
        sk_dev_graph_drop(g);
        return rc;
    }
    *out = g;
    return SK_OK;
}

sk_code sk_dev_graph_launch(sk_dev *d, sk_dev_graph *g, sk_status *st)
{
    cudaError_t e;
    SK_TRY(sk_dev_use_live(d, "graph launch", st));
    e = SK_FAULT() ? cudaErrorUnknown : cudaGraphLaunch(g->exec, d->stream);
    return sk_dev_try(e, "cudaGraphLaunch", st);
}

int64_t sk_dev_graph_nodes(const sk_dev_graph *g) { return g->n_nodes; }

int64_t sk_dev_graph_edges(const sk_dev_graph *g, int64_t *programmatic)
{
    if (programmatic) *programmatic = g->n_programmatic;
    return g->n_edges;
}

void sk_dev_graph_drop(sk_dev_graph *g)
{
    if (!g) return;
    if (g->exec && cudaSetDevice(g->index) == cudaSuccess) (void)cudaGraphExecDestroy(g->exec);
    sk_mem_free(g);
}

/* Branches */

static sk_code check_branch(const sk_dev *d, int32_t branch, sk_status *st)
{
    if (branch < 1 || branch > SK_DEV_BRANCHES)
        return SK_FAIL(st, SK_INVALID, "branch %d: expected 1 to %d", (int)branch, SK_DEV_BRANCHES);
    return sk_dev_use(d, st);
}

static sk_code order(cudaStream_t before, cudaEvent_t event, cudaStream_t after, sk_status *st)
{
    SK_TRY(sk_dev_try(cudaEventRecord(event, before), "cudaEventRecord", st));
    return sk_dev_try(cudaStreamWaitEvent(after, event, 0), "cudaStreamWaitEvent", st);
}

sk_code sk_dev_fork(sk_dev *d, int32_t branch, sk_status *st)
{
    SK_TRY(check_branch(d, branch, st));
    return order(d->stream, d->forked[branch - 1], d->branch[branch - 1], st);
}

sk_code sk_dev_join(sk_dev *d, int32_t branch, sk_status *st)
{
    SK_TRY(check_branch(d, branch, st));
    return order(d->branch[branch - 1], d->joined[branch - 1], d->stream, st);
}

/* Timing */

static sk_code check_event(int32_t event, sk_status *st)
{
    if (event >= 0 && event < SK_DEV_EVENTS) return SK_OK;
    return SK_FAIL(st, SK_INVALID, "timing event %d: expected 0 to %d", (int)event,
                   SK_DEV_EVENTS - 1);
}

sk_code sk_dev_mark(sk_dev *d, int32_t event, sk_status *st)
{
    // Without the flag a recording takes the event for an edge and forgets the time.
    unsigned flags = d->recording ? cudaEventRecordExternal : cudaEventRecordDefault;
    SK_TRY(check_event(event, st));
    SK_TRY(sk_dev_use(d, st));
    return sk_dev_try(cudaEventRecordWithFlags(d->mark[event], d->stream, flags),
                      "cudaEventRecordWithFlags", st);
}

sk_code sk_dev_elapsed(sk_dev *d, int32_t from, int32_t to, double *us, sk_status *st)
{
    float ms = 0;
    SK_TRY(check_event(from, st));
    SK_TRY(check_event(to, st));
    SK_TRY(sk_dev_use_live(d, "timing", st));
    SK_TRY(sk_dev_try(cudaEventSynchronize(d->mark[to]), "cudaEventSynchronize", st));
    SK_TRY(sk_dev_try(cudaEventElapsedTime(&ms, d->mark[from], d->mark[to]), "cudaEventElapsedTime",
                      st));
    *us = (double)ms * 1000.0;
    return SK_OK;
}
