"""A Python program without packages that calls firn/kernels.h by ctypes: kernels_caller.py LIBFIRN_SO"""
import ctypes
import random
import sys

F32, Q8_0, I32 = 0, 8, 26
MUL_MAT_ID, MUL_MAT_ID_BACK = 2, 3
ARGUMENT, DEVICE = 1, 6
K, M, N_EXPERT, N_USED, N_TOKENS = 64, 10, 3, 2, 5


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_int64 * 4)]


class Product(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("precision", ctypes.c_int), ("n_threads", ctypes.c_int), ("accumulate", ctypes.c_bool), ("w", Array), ("x", Array),
                ("dy", Array), ("ids", Array), ("table", Array), ("out", Array)]


firn = ctypes.CDLL(sys.argv[1])
size_t, pointer, i64 = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64
firn.firn_context_create.restype = pointer
firn.firn_context_create.argtypes = [pointer]
firn.firn_context_destroy.argtypes = [pointer]
firn.firn_error.restype = ctypes.c_char_p
firn.firn_error.argtypes = [pointer]
firn.firn_row_bytes.restype = size_t
firn.firn_row_bytes.argtypes = [ctypes.c_int, i64]
firn.firn_array_dense.restype = Array
firn.firn_array_dense.argtypes = [ctypes.c_int, pointer, i64, i64, i64, i64]
firn.firn_product_work_bytes.argtypes = [pointer, ctypes.POINTER(Product), ctypes.POINTER(size_t)]
firn.firn_product_run.argtypes = [pointer, ctypes.POINTER(Product), pointer, size_t]
firn.firn_encode_rows.argtypes = [pointer, ctypes.c_int, pointer, size_t, i64, i64, pointer, pointer, size_t, ctypes.c_int]
firn.firn_decode_rows.argtypes = [pointer, ctypes.c_int, pointer, size_t, i64, i64, pointer, size_t, ctypes.c_int]

ctx = firn.firn_context_create(None)
assert ctx


def need(status):
    assert status == 0, firn.firn_error(ctx).decode()


def run(product):
    size = size_t()
    status = firn.firn_product_work_bytes(ctx, product, size)
    if status:
        return status
    memory = ctypes.create_string_buffer(size.value + 64)
    start = ctypes.addressof(memory)
    return firn.firn_product_run(ctx, product, start + -start % 64, size)


def dense(kind, memory, *ne):
    return firn.firn_array_dense(kind, ctypes.addressof(memory), *(ne + (1, 1, 1))[:4])


draw = random.Random(1)
plain = (ctypes.c_float * (K * M * N_EXPERT))(*[draw.uniform(-1, 1) for _ in range(K * M * N_EXPERT)])
row = firn.firn_row_bytes(Q8_0, K)
packed = ctypes.create_string_buffer(row * M * N_EXPERT)
need(firn.firn_encode_rows(ctx, Q8_0, plain, 4 * K, K, M * N_EXPERT, None, packed, row, 0))
need(firn.firn_decode_rows(ctx, Q8_0, packed, row, K, M * N_EXPERT, plain, 4 * K, 0))
x = (ctypes.c_float * (K * N_TOKENS))(*[draw.uniform(-1, 1) for _ in range(K * N_TOKENS)])
y = (ctypes.c_float * (M * N_USED * N_TOKENS))()
dx = (ctypes.c_float * (K * N_USED * N_TOKENS))()
ids = (ctypes.c_int32 * (N_USED * N_TOKENS))(*[draw.randrange(N_EXPERT) for _ in range(N_USED * N_TOKENS)])

forward = Product(kind=MUL_MAT_ID, w=dense(Q8_0, packed, K, M, N_EXPERT), x=dense(F32, x, K, 1, N_TOKENS),
                  ids=dense(I32, ids, N_USED, N_TOKENS), out=dense(F32, y, M, N_USED, N_TOKENS))
back = Product(kind=MUL_MAT_ID_BACK, w=forward.w, dy=forward.out, ids=forward.ids, out=dense(F32, dx, K, N_USED, N_TOKENS))
need(run(forward))
need(run(back))

worst = 0
for slot in range(N_USED * N_TOKENS):
    weight = lambda i, j: plain[(ids[slot] * M + j) * K + i]
    for j in range(M):
        exact = sum(weight(i, j) * x[slot // N_USED * K + i] for i in range(K))
        worst = max(worst, abs(exact - y[slot * M + j]))
    for i in range(K):
        exact = sum(weight(i, j) * y[slot * M + j] for j in range(M))
        worst = max(worst, abs(exact - dx[slot * K + i]))
assert worst < 1e-4, worst

ids[3] = N_EXPERT
assert run(forward) == DEVICE
assert firn.firn_error(ctx) == b"MUL_MAT_ID: slot 1 of token 1 names expert 3 of 3", firn.firn_error(ctx)
forward.out.ne[0] = 9
assert run(forward) == ARGUMENT
firn.firn_context_destroy(ctx)
