//! Times as text.

/// ISO 8601 in UTC with milliseconds, e.g. `2026-11-30T06:15:36.123Z`; without them when they are 0.
pub(crate) fn iso(unix_ms: u64) -> String {
    let (days, ms_of_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (seconds, ms) = (ms_of_day / 1000, ms_of_day % 1000);
    // Days since 0000-03-01, in eras of 400 years: leap days then end a year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = if ms == 0 { String::new() } else { format!(".{ms:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

pub(crate) fn iso_opt(unix_ms: Option<u64>) -> Option<String> {
    unix_ms.map(iso)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_iso_text() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_795_999_999_999, "2026-11-30T00:53:19.999Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ];
        for (unix_ms, text) in cases {
            assert_eq!(iso(unix_ms), text);
        }
    }
}
