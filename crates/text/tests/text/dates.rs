//! Dates in chat templates, against Python's `strftime`.

use latent_text::{ChatInput, ChatTemplate, Moment};

/// Every conversion and flag.
const FORMAT: &str = "%A %a %B %b %h %C %c %D %d %e %F %f %G %g %H %I %j %k %l %M %m %P %p %R %r %S %s %T %U %u %V %W %w %X %x %Y %y %Z %z %% %-d %_m %0e %^a";

/// The output of Python 3 in UTC, for ends of months, leap days, and days around new year whose ISO
/// week belongs to another year.
#[rustfmt::skip]
const PRINTED: [(i64, &str); 14] = [
    (0, "Thursday Thu January Jan Jan 19 Thu Jan  1 00:00:00 1970 01/01/70 01  1 1970-01-01 000000 1970 70 00 12 001  0 12 00 01 am AM 00:00 12:00:00 AM 00 0 00:00:00 00 4 01 00 4 00:00:00 01/01/70 1970 70 UTC +0000 % 1  1 01 THU"),
    (-1, "Wednesday Wed December Dec Dec 19 Wed Dec 31 23:59:59 1969 12/31/69 31 31 1969-12-31 000000 1970 70 23 11 365 23 11 59 12 pm PM 23:59 11:59:59 PM 59 -1 23:59:59 52 3 01 52 3 23:59:59 12/31/69 1969 69 UTC +0000 % 31 12 31 WED"),
    (951782399, "Monday Mon February Feb Feb 20 Mon Feb 28 23:59:59 2000 02/28/00 28 28 2000-02-28 000000 2000 00 23 11 059 23 11 59 02 pm PM 23:59 11:59:59 PM 59 951782399 23:59:59 09 1 09 09 1 23:59:59 02/28/00 2000 00 UTC +0000 % 28  2 28 MON"),
    (951782400, "Tuesday Tue February Feb Feb 20 Tue Feb 29 00:00:00 2000 02/29/00 29 29 2000-02-29 000000 2000 00 00 12 060  0 12 00 02 am AM 00:00 12:00:00 AM 00 951782400 00:00:00 09 2 09 09 2 00:00:00 02/29/00 2000 00 UTC +0000 % 29  2 29 TUE"),
    (1795397028, "Monday Mon November Nov Nov 20 Mon Nov 23 01:23:48 2026 11/23/26 23 23 2026-11-23 000000 2026 26 01 01 327  1  1 23 11 am AM 01:23 01:23:48 AM 48 1795397028 01:23:48 47 1 48 47 1 01:23:48 11/23/26 2026 26 UTC +0000 % 23 11 23 MON"),
    (1230767999, "Wednesday Wed December Dec Dec 20 Wed Dec 31 23:59:59 2008 12/31/08 31 31 2008-12-31 000000 2009 09 23 11 366 23 11 59 12 pm PM 23:59 11:59:59 PM 59 1230767999 23:59:59 52 3 01 52 3 23:59:59 12/31/08 2008 08 UTC +0000 % 31 12 31 WED"),
    (1262304000, "Friday Fri January Jan Jan 20 Fri Jan  1 00:00:00 2010 01/01/10 01  1 2010-01-01 000000 2009 09 00 12 001  0 12 00 01 am AM 00:00 12:00:00 AM 00 1262304000 00:00:00 00 5 53 00 5 00:00:00 01/01/10 2010 10 UTC +0000 % 1  1 01 FRI"),
    (1735516800, "Monday Mon December Dec Dec 20 Mon Dec 30 00:00:00 2024 12/30/24 30 30 2024-12-30 000000 2025 25 00 12 365  0 12 00 12 am AM 00:00 12:00:00 AM 00 1735516800 00:00:00 52 1 01 53 1 00:00:00 12/30/24 2024 24 UTC +0000 % 30 12 30 MON"),
    (1483228800, "Sunday Sun January Jan Jan 20 Sun Jan  1 00:00:00 2017 01/01/17 01  1 2017-01-01 000000 2016 16 00 12 001  0 12 00 01 am AM 00:00 12:00:00 AM 00 1483228800 00:00:00 01 7 52 00 0 00:00:00 01/01/17 2017 17 UTC +0000 % 1  1 01 SUN"),
    (4102444799, "Thursday Thu December Dec Dec 20 Thu Dec 31 23:59:59 2099 12/31/99 31 31 2099-12-31 000000 2099 99 23 11 365 23 11 59 12 pm PM 23:59 11:59:59 PM 59 4102444799 23:59:59 52 4 53 52 4 23:59:59 12/31/99 2099 99 UTC +0000 % 31 12 31 THU"),
    (-11676096000, "Saturday Sat January Jan Jan 16 Sat Jan  1 00:00:00 1600 01/01/00 01  1 1600-01-01 000000 1599 99 00 12 001  0 12 00 01 am AM 00:00 12:00:00 AM 00 -11676096000 00:00:00 00 6 52 00 6 00:00:00 01/01/00 1600 00 UTC +0000 % 1  1 01 SAT"),
    (32503593600, "Tuesday Tue December Dec Dec 29 Tue Dec 31 00:00:00 2999 12/31/99 31 31 2999-12-31 000000 3000 00 00 12 365  0 12 00 12 am AM 00:00 12:00:00 AM 00 32503593600 00:00:00 52 2 01 52 2 00:00:00 12/31/99 2999 99 UTC +0000 % 31 12 31 TUE"),
    (1709208000, "Thursday Thu February Feb Feb 20 Thu Feb 29 12:00:00 2024 02/29/24 29 29 2024-02-29 000000 2024 24 12 12 060 12 12 00 02 pm PM 12:00 12:00:00 PM 00 1709208000 12:00:00 08 4 09 09 4 12:00:00 02/29/24 2024 24 UTC +0000 % 29  2 29 THU"),
    (253402300799, "Friday Fri December Dec Dec 99 Fri Dec 31 23:59:59 9999 12/31/99 31 31 9999-12-31 000000 9999 99 23 11 365 23 11 59 12 pm PM 23:59 11:59:59 PM 59 253402300799 23:59:59 52 5 52 52 5 23:59:59 12/31/99 9999 99 UTC +0000 % 31 12 31 FRI"),
];

#[test]
fn dates_equal_those_of_python() {
    for (seconds, expected) in PRINTED {
        assert_eq!(Moment::utc(seconds, 0).format(FORMAT).as_deref(), Ok(expected), "{seconds}");
    }
    assert_eq!(Moment::utc(0, 7).format("%f ü%n%t").as_deref(), Ok("000007 ü\n\t"));
}

#[test]
fn unsupported_formats_and_years_are_errors() {
    let error = |seconds, format| Moment::utc(seconds, 0).format(format).unwrap_err();
    assert_eq!(error(0, "%Q"), "unknown conversion %Q in the date format \"%Q\"");
    assert!(error(0, "50%").contains("ends within a conversion"));
    for seconds in [i64::MIN, -62_135_596_801, 253_402_300_800, i64::MAX] {
        assert!(error(seconds, "%Y").contains("years 1 to 9999"), "{seconds}");
    }
}

#[test]
fn templates_print_the_date() {
    let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}").unwrap();
    let fixed = ChatInput { now: Some(1_795_397_028), ..ChatInput::new(serde_json::json!([])) };
    assert_eq!(template.render(&fixed).unwrap().text, "23 Nov 2026");
    let year = template.render(&ChatInput::new(serde_json::json!([]))).unwrap().text;
    assert!(year.len() == 11 && &year[7..] >= "2026", "{year}");
}
