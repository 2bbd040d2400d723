//! Dates in the formats of C's and Python's `strftime`, for chat templates that print the date.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The years 1 to 9999, as in Python. Within them, the calendar's arithmetic cannot overflow i64.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// A time with its time zone.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Seconds since 1970, in UTC.
    seconds: i64,
    micros: u32,
    /// Seconds east of Greenwich.
    offset: i64,
    zone: String,
}

impl Moment {
    pub fn utc(seconds: i64, micros: u32) -> Moment {
        Moment { seconds, micros, offset: 0, zone: "UTC".to_owned() }
    }

    /// The current time. It is in UTC in builds without the feature `time-zones`.
    pub fn now() -> Moment {
        // Only the time zone database needs jiff. Without it the crate has fewer dependencies.
        #[cfg(any(feature = "time-zones", target_family = "wasm"))]
        {
            let now = jiff::Zoned::now();
            let time = now.timestamp();
            Moment {
                offset: i64::from(now.offset().seconds()),
                zone: now.strftime("%Z").to_string(),
                ..Moment::utc(time.as_second(), time.subsec_microsecond().unsigned_abs())
            }
        }
        #[cfg(not(any(feature = "time-zones", target_family = "wasm")))]
        {
            let time = std::time::SystemTime::now()
                .duration_since(std::time::SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            Moment::utc(i64::try_from(time.as_secs()).unwrap_or(i64::MAX), time.subsec_micros())
        }
    }

    /// Formats the time.
    ///
    /// # Errors
    /// The time is outside the years 1 to 9999, or a conversion is unknown.
    pub fn format(&self, format: &str) -> Result<String, String> {
        let local = self.seconds.checked_add(self.offset).filter(|local| SECONDS.contains(local));
        let local = local.ok_or("the date is outside the years 1 to 9999")?;
        let mut text = String::new();
        self.write(&mut text, format, &CalendarDay::new(local.div_euclid(86_400)), local.rem_euclid(86_400))?;
        Ok(text)
    }

    fn write(&self, out: &mut String, format: &str, day: &CalendarDay, second: i64) -> Result<(), String> {
        let (hour, minute) = (second / 3600, second / 60 % 60);
        // 0 and 12 o'clock are both 12.
        let hour12 = (hour + 11) % 12 + 1;
        let noon = if hour < 12 { "AM" } else { "PM" };
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            // Flags of glibc: `-` no padding, `_` spaces, `0` zeros, `^` upper case.
            let mut conversion = rest.next();
            let flag = conversion.filter(|c| matches!(c, '-' | '_' | '0' | '^'));
            if flag.is_some() {
                conversion = rest.next();
            }
            let padding = flag.filter(|flag| *flag != '^');
            let number = |value: i64, width: usize, pad: char| match padding.unwrap_or(pad) {
                '-' => value.to_string(),
                '_' => format!("{value:width$}"),
                _ => format!("{value:0width$}"),
            };
            let name = |text: &str| if flag == Some('^') { text.to_uppercase() } else { text.to_owned() };
            // Conversions that stand for others, as in C's locale.
            let all = |format: &str| {
                let mut text = String::new();
                self.write(&mut text, format, day, second).map(|()| text)
            };
            let text = match conversion {
                Some('A') => name(day.weekday_name()),
                Some('a') => name(&day.weekday_name()[..3]),
                Some('B') => name(day.month_name()),
                Some('b' | 'h') => name(&day.month_name()[..3]),
                Some('C') => number(day.year / 100, 2, '0'),
                Some('c') => all("%a %b %e %H:%M:%S %Y")?,
                Some('D' | 'x') => all("%m/%d/%y")?,
                Some('d') => number(day.day, 2, '0'),
                Some('e') => number(day.day, 2, '_'),
                Some('F') => all("%Y-%m-%d")?,
                // Python's conversion: C has none for microseconds.
                Some('f') => number(self.micros.into(), 6, '0'),
                Some('G') => number(day.iso_week().0, 4, '0'),
                Some('g') => number(day.iso_week().0 % 100, 2, '0'),
                Some('H') => number(hour, 2, '0'),
                Some('I') => number(hour12, 2, '0'),
                Some('j') => number(day.of_year + 1, 3, '0'),
                Some('k') => number(hour, 2, '_'),
                Some('l') => number(hour12, 2, '_'),
                Some('M') => number(minute, 2, '0'),
                Some('m') => number(day.month, 2, '0'),
                Some('n') => "\n".to_owned(),
                Some('P') => noon.to_lowercase(),
                Some('p') => noon.to_owned(),
                Some('R') => all("%H:%M")?,
                Some('r') => all("%I:%M:%S %p")?,
                Some('S') => number(second % 60, 2, '0'),
                Some('s') => self.seconds.to_string(),
                Some('T' | 'X') => all("%H:%M:%S")?,
                Some('t') => "\t".to_owned(),
                // Weeks of `U` begin on Sunday, those of `W` on Monday. Days before the first one
                // are in week 0.
                Some('U') => number((day.of_year + 7 - day.weekday) / 7, 2, '0'),
                Some('u') => number((day.weekday + 6) % 7 + 1, 1, '0'),
                Some('V') => number(day.iso_week().1, 2, '0'),
                Some('W') => number((day.of_year + 7 - (day.weekday + 6) % 7) / 7, 2, '0'),
                Some('w') => number(day.weekday, 1, '0'),
                Some('Y') => number(day.year, 4, '0'),
                Some('y') => number(day.year % 100, 2, '0'),
                Some('Z') => name(&self.zone),
                Some('z') => {
                    let sign = if self.offset < 0 { '-' } else { '+' };
                    let minutes = self.offset.abs() / 60;
                    format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
                }
                Some('%') => "%".to_owned(),
                Some(other) => {
                    return Err(format!("unknown conversion %{other} in the date format {format:?}"));
                }
                None => return Err(format!("the date format {format:?} ends within a conversion")),
            };
            out.push_str(&text);
        }
        Ok(())
    }
}

/// A day of the Gregorian calendar.
struct CalendarDay {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
    /// Day of the year, from 0.
    of_year: i64,
    /// Day of the week, from 0 (Sunday).
    weekday: i64,
}

impl CalendarDay {
    /// The date of a number of days since 1970 (Howard Hinnant's `civil_from_days`).
    fn new(days: i64) -> CalendarDay {
        // Days since 0000-03-01. An era has 400 years, after which the calendar repeats.
        let z = days + 719_468;
        let (era, day_of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        // In years that begin in March, February 29 is the last day, so that the lengths of months
        // do not depend on the year.
        let of_shifted = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * of_shifted + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        CalendarDay {
            year,
            month,
            day: of_shifted - (153 * shifted + 2) / 5 + 1,
            of_year: if month <= 2 { of_shifted - 306 } else { of_shifted + 59 + leap },
            weekday: (days + 4).rem_euclid(7),
        }
    }

    fn weekday_name(&self) -> &'static str {
        usize::try_from(self.weekday).ok().and_then(|day| DAYS.get(day)).unwrap_or(&"")
    }

    fn month_name(&self) -> &'static str {
        usize::try_from(self.month - 1).ok().and_then(|month| MONTHS.get(month)).unwrap_or(&"")
    }

    /// Year and week of ISO 8601. Its weeks begin on Monday and belong to the year of their
    /// Thursday.
    fn iso_week(&self) -> (i64, i64) {
        // Weekday of December 31. A year has 53 weeks if it begins or ends on a Thursday.
        let last = |year: i64| (year + year / 4 - year / 100 + year / 400) % 7;
        let weeks = |year: i64| if last(year) == 4 || last(year - 1) == 3 { 53 } else { 52 };
        match (self.of_year + 10 - (self.weekday + 6) % 7) / 7 {
            0 => (self.year - 1, weeks(self.year - 1)),
            53 if weeks(self.year) == 52 => (self.year + 1, 1),
            week => (self.year, week),
        }
    }
}
