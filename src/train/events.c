/* TensorBoard's event files (tensorflow/core/util/event.proto, lib/io/record_writer): records
 *
 *     u64 length, u32 masked CRC-32C of the length, the bytes, u32 masked CRC-32C of the bytes         little-endian
 *
 * of protocol buffer messages: an Event {1: wall_time f64, 2: step, 3: file_version | 5: Summary | 7: SessionLog},
 * Summary {1: Value {1: tag, 2: simple_value f32}}..., SessionLog {1: status}. */
#include "train/events.h"

#include "core/crc32c.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, SESSION_START = 1 };

static void put_varint(firn_text *t, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        firn_text_putc(t, (char)((v & 0x7F) | 0x80));
    firn_text_putc(t, (char)v);
}

static void put_key(firn_text *t, int field, int type)
{
    put_varint(t, (uint64_t)(field << 3 | type));
}

static void put_little(firn_text *t, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        firn_text_putc(t, (char)(v >> 8 * i & 0xFF));
}

static void put_bytes(firn_text *t, int field, const void *bytes, size_t n)
{
    put_key(t, field, BYTES);
    put_varint(t, n);
    firn_text_append(t, bytes, n);
}

/* ---- events ---- */

static void begin_event(firn_text *t, firn_context *ctx, double wall_time, int64_t step)
{
    uint64_t bits;

    firn_text_init(t, ctx, 0);
    memcpy(&bits, &wall_time, sizeof bits);
    put_key(t, 1, FIXED64);
    put_little(t, bits, 8);
    if (step) {
        put_key(t, 2, VARINT);
        put_varint(t, (uint64_t)step);
    }
}

static uint32_t masked(const void *data, size_t n)
{
    const uint32_t crc = firn_crc32c(data, n);

    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* The event as a record behind what is there; frees it. */
static void end_event(firn_text *event, firn_text *out)
{
    const size_t begin = out->size;

    put_little(out, event->size, 8);
    if (out->status == FIRN_OK)
        put_little(out, masked(out->data + begin, 8), 4);
    firn_text_append(out, firn_text_cstr(event), event->size);
    put_little(out, masked(firn_text_cstr(event), event->size), 4);
    if (out->status == FIRN_OK)
        out->status = event->status;
    firn_text_free(event);
}

void firn_events_begin_record(firn_text *out, double wall_time)
{
    static const char version[] = "brain.Event:2";
    firn_text event;

    begin_event(&event, out->ctx, wall_time, 0);
    put_bytes(&event, 3, version, sizeof version - 1);
    end_event(&event, out);
}

void firn_events_start_record(firn_text *out, double wall_time, int64_t step)
{
    static const char start[] = {1 << 3 | VARINT, SESSION_START};
    firn_text event;

    begin_event(&event, out->ctx, wall_time, step);
    put_bytes(&event, 7, start, sizeof start);
    end_event(&event, out);
}

void firn_events_scalars_record(firn_text *out, double wall_time, int64_t step, const firn_scalar *scalars, size_t n)
{
    firn_text event, summary, value;

    begin_event(&event, out->ctx, wall_time, step);
    firn_text_init(&summary, out->ctx, 0);
    for (size_t i = 0; i < n; i++) {
        const float x = (float)scalars[i].value;
        uint32_t bits;
        if (isnan(x))
            continue;
        memcpy(&bits, &x, sizeof bits);
        firn_text_init(&value, out->ctx, 0);
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_key(&value, 2, FIXED32);
        put_little(&value, bits, 4);
        put_bytes(&summary, 1, firn_text_cstr(&value), value.size);
        if (out->status == FIRN_OK)
            out->status = value.status;
        firn_text_free(&value);
    }
    put_bytes(&event, 5, firn_text_cstr(&summary), summary.size);
    if (out->status == FIRN_OK)
        out->status = summary.status;
    firn_text_free(&summary);
    end_event(&event, out);
}

/* ---- the file ---- */

static struct timespec now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t;
}

static double seconds_of(struct timespec t)
{
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Writes the records and frees them. */
static firn_status write_out(firn_events *e, firn_text *records)
{
    firn_status s = records->status;

    for (size_t done = 0; s == FIRN_OK && done < records->size;) {
        const ssize_t n = write(e->fd, records->data + done, records->size - done);
        if (n < 0 && errno != EINTR)
            s = firn_fail(e->ctx, FIRN_ERR_IO, "cannot write %s: %s", e->path, strerror(errno));
        else if (n > 0)
            done += (size_t)n;
    }
    firn_text_free(records);
    if (s != FIRN_OK) /* half a record stands there: readers stop before it */
        firn_events_close(e);
    return s;
}

firn_status firn_events_open(firn_context *ctx, const char *folder, int64_t step, firn_events *e)
{
    const struct timespec t = now();
    firn_text records;

    *e = (firn_events){.ctx = ctx, .fd = -1};
    /* Readers take the files of a folder in the order of their names. */
    if (snprintf(e->path, sizeof e->path, "%s/events.out.tfevents.%010lld.%09ld.firn", folder, (long long)t.tv_sec,
                 t.tv_nsec) >= (int)sizeof e->path)
        return firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", folder);
    e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (e->fd < 0)
        return firn_fail(ctx, FIRN_ERR_IO, "cannot write %s: %s", e->path, strerror(errno));
    firn_text_init(&records, ctx, 0);
    firn_events_begin_record(&records, seconds_of(t));
    if (step > 0)
        firn_events_start_record(&records, seconds_of(t), step + 1);
    return write_out(e, &records);
}

firn_status firn_events_add(firn_events *e, int64_t step, const firn_scalar *scalars, size_t n)
{
    firn_text records;

    if (e->fd < 0)
        return FIRN_OK;
    firn_text_init(&records, e->ctx, 0);
    firn_events_scalars_record(&records, seconds_of(now()), step, scalars, n);
    return write_out(e, &records);
}

void firn_events_close(firn_events *e)
{
    if (e->fd >= 0)
        close(e->fd);
    e->fd = -1;
}
