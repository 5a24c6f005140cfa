/* strftime_now: strftime with English names, and glibc's flags - _ 0 ^. Its own, since the C library's follows the
 * locale. */
#include "jinja/eval.h"

#include <string.h>

static int iso_week(const struct tm *t, int *year)
{
    const int weekday = (t->tm_wday + 6) % 7; /* Monday 0 */
    int week = (t->tm_yday - weekday + 10) / 7;

    *year = t->tm_year + 1900;
    if (week < 1) {
        const int last = *year - 1;
        const bool leap = (last % 4 == 0 && last % 100 != 0) || last % 400 == 0;
        week = (t->tm_yday + (leap ? 366 : 365) - weekday + 10) / 7;
        *year = last;
    } else if (week == 53) {
        const bool leap = (*year % 4 == 0 && *year % 100 != 0) || *year % 400 == 0;
        if (t->tm_yday - weekday + 3 >= (leap ? 366 : 365)) {
            week = 1;
            ++*year;
        }
    }
    return week;
}

static void put_time(firn_text *out, const struct tm *t, const char *format, size_t size)
{
    static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"};
    const int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12;

    for (size_t i = 0; i < size; i++) {
        if (format[i] != '%' || i + 1 == size) {
            firn_text_putc(out, format[i]);
            continue;
        }
        char flag = 0;
        if (i + 2 < size && strchr("-_0^", format[i + 1]))
            flag = format[++i];
        const char c = format[++i];
        int number = -1, width = 2, year;
        char fill = '0';
        const char *text = NULL, *composed = NULL;
        int cut = 99;
        switch (c) {
        case 'a':
        case 'A':
            text = days[t->tm_wday % 7];
            cut = c == 'a' ? 3 : 99;
            break;
        case 'b':
        case 'h':
        case 'B':
            text = months[t->tm_mon % 12];
            cut = c == 'B' ? 99 : 3;
            break;
        case 'p':
            text = t->tm_hour < 12 ? "AM" : "PM";
            break;
        case 'c':
            composed = "%a %b %e %H:%M:%S %Y";
            break;
        case 'x':
        case 'D':
            composed = "%m/%d/%y";
            break;
        case 'X':
        case 'T':
            composed = "%H:%M:%S";
            break;
        case 'F':
            composed = "%Y-%m-%d";
            break;
        case 'R':
            composed = "%H:%M";
            break;
        case 'r':
            composed = "%I:%M:%S %p";
            break;
        case 'Y':
            number = t->tm_year + 1900;
            width = 4;
            break;
        case 'G':
            iso_week(t, &number);
            width = 4;
            break;
        case 'V':
            number = iso_week(t, &year);
            break;
        case 'C':
            number = (t->tm_year + 1900) / 100;
            break;
        case 'y':
            number = t->tm_year % 100;
            break;
        case 'm':
            number = t->tm_mon + 1;
            break;
        case 'd':
        case 'e':
            number = t->tm_mday;
            fill = c == 'e' ? ' ' : '0';
            break;
        case 'H':
        case 'k':
            number = t->tm_hour;
            fill = c == 'k' ? ' ' : '0';
            break;
        case 'I':
        case 'l':
            number = hour12;
            fill = c == 'l' ? ' ' : '0';
            break;
        case 'M':
            number = t->tm_min;
            break;
        case 'S':
            number = t->tm_sec;
            break;
        case 'f': /* the fixed time has no fraction of a second */
            number = 0;
            width = 6;
            break;
        case 'j':
            number = t->tm_yday + 1;
            width = 3;
            break;
        case 'u':
            number = t->tm_wday ? t->tm_wday : 7;
            width = 1;
            break;
        case 'w':
            number = t->tm_wday;
            width = 1;
            break;
        case 'U':
            number = (t->tm_yday + 7 - t->tm_wday) / 7;
            break;
        case 'W':
            number = (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7;
            break;
        case 'n':
        case 't':
            firn_text_putc(out, c == 'n' ? '\n' : '\t');
            break;
        case 'z':
        case 'Z': /* a time without a zone */
            break;
        case '%':
            firn_text_putc(out, '%');
            break;
        default:
            firn_text_putc(out, '%');
            if (flag)
                firn_text_putc(out, flag);
            firn_text_putc(out, c);
        }
        if (composed) {
            put_time(out, t, composed, strlen(composed));
        } else if (text) {
            for (int k = 0; text[k] && k < cut; k++)
                firn_text_putc(out, flag == '^' && text[k] >= 'a' && text[k] <= 'z' ? (char)(text[k] - 32) : text[k]);
        } else if (number >= 0) {
            if (flag == '_' || flag == '0')
                fill = flag == '_' ? ' ' : '0';
            if (flag == '-')
                width = 0;
            firn_text_printf(out, fill == ' ' ? "%*d" : "%0*d", width, number);
        }
    }
}

firn_status firn_jinja_strftime(jinja_eval *e, const jinja_string *format, jinja_value *out)
{
    firn_text text;

    FIRN_TRY(firn_jinja_step(e, 4 * JINJA_PER_PRINT * format->size)); /* one letter may stand for seven fields */
    firn_jinja_text(e, &text);
    put_time(&text, &e->now, format->data, format->size);
    return firn_jinja_take(e, &text, out);
}
