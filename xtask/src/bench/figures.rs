//! What a run measured, and the table of all of them.

use std::time::Duration;

use super::case::Case;
use super::histogram::Histogram;
use super::process::Usage;

/// One run's window.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) window: Duration,
    pub(crate) usage: Usage,
    /// Messages with a receipt.
    pub(crate) published: u64,
    pub(crate) consumed: u64,
    pub(crate) rss_bytes: u64,
    /// Bytes of a message.
    pub(crate) size: u32,
    pub(crate) publish: Histogram,
    pub(crate) end_to_end: Histogram,
}

/// A column of the table.
struct Column {
    title: &'static str,
    decimals: usize,
    value: fn(&Figures) -> f64,
}

const COLUMNS: [Column; 12] = [
    Column { title: "msg/s in", decimals: 0, value: |run| per_second(run, run.published as f64) },
    Column { title: "msg/s out", decimals: 0, value: |run| per_second(run, run.consumed as f64) },
    Column { title: "MB/s in", decimals: 1, value: |run| per_second(run, payload_bytes(run) / 1e6) },
    Column { title: "CPU µs/msg", decimals: 2, value: cpu_us_per_message },
    Column { title: "CPU s/GB", decimals: 2, value: |run| run.usage.cpu.as_secs_f64() / (payload_bytes(run) / 1e9) },
    Column { title: "written/payload", decimals: 3, value: |run| run.usage.written_bytes as f64 / payload_bytes(run) },
    Column { title: "RSS MB", decimals: 1, value: |run| run.rss_bytes as f64 / 1e6 },
    Column { title: "publish p50 ms", decimals: 2, value: |run| ms(run.publish.quantile(0.5)) },
    Column { title: "p99", decimals: 2, value: |run| ms(run.publish.quantile(0.99)) },
    Column { title: "p99.9", decimals: 2, value: |run| ms(run.publish.quantile(0.999)) },
    Column { title: "max", decimals: 2, value: |run| ms(run.publish.max()) },
    Column { title: "end to end p50 ms", decimals: 2, value: |run| ms(run.end_to_end.quantile(0.5)) },
];

impl Figures {
    /// For a person who waits.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:.0} msg/s, {:.2} CPU µs/msg, publish p99 {:.2} ms",
            per_second(self, self.published as f64),
            cpu_us_per_message(self),
            ms(self.publish.quantile(0.99))
        )
    }
}

/// Markdown: a row a case and target, medians over the runs, in parentheses the ratio to the first target.
pub(crate) fn table(labels: &[&str], cases: &[(Case, Vec<Vec<Figures>>)]) -> String {
    let mut text = String::from("| case | server |");
    COLUMNS.iter().for_each(|column| text += &format!(" {} |", column.title));
    text += "\n|---|---|";
    COLUMNS.iter().for_each(|_| text += "--:|");
    for (case, targets) in cases {
        for (index, (label, runs)) in labels.iter().zip(targets).enumerate() {
            text += &format!("\n| {case} | {label} |");
            for column in &COLUMNS {
                let of = |runs: &[Figures]| median(runs.iter().map(column.value).collect());
                let value = of(runs);
                text += &format!(" {value:.*}", column.decimals);
                if index > 0 {
                    text += &format!(" ({:.2}×)", value / of(&targets[0]));
                }
                text += " |";
            }
        }
    }
    text
}

/// Of an even number, the mean of the two in the middle; NaN of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.get(half), values.len() % 2) {
        (None, _) => f64::NAN,
        (Some(middle), 1) => *middle,
        (Some(upper), _) => (values[half - 1] + upper) / 2.0,
    }
}

fn per_second(run: &Figures, amount: f64) -> f64 {
    amount / run.window.as_secs_f64()
}

fn cpu_us_per_message(run: &Figures) -> f64 {
    run.usage.cpu.as_secs_f64() * 1e6 / run.published as f64
}

fn payload_bytes(run: &Figures) -> f64 {
    run.published as f64 * f64::from(run.size)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Case, Figures, Histogram, Usage, median, table};

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn the_table_compares_with_the_first_target() {
        let run = |cpu_ms| Figures {
            window: Duration::from_secs(2),
            usage: Usage { cpu: Duration::from_millis(cpu_ms), written_bytes: 22_000_000 },
            published: 20_000,
            consumed: 19_000,
            rss_bytes: 30_000_000,
            size: 1000,
            publish: Histogram::default(),
            end_to_end: Histogram::default(),
        };
        let table = table(&["a", "b"], &[(Case::Full, vec![vec![run(200)], vec![run(500)]])]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[2].starts_with("| full | a | 10000 | 9500 | 10.0 | 10.00 | 10.00 | 1.100 | 30.0 |"), "{table}");
        assert!(lines[3].starts_with("| full | b | 10000 (1.00×) | 9500 (1.00×) | 10.0 (1.00×) | 25.00 (2.50×) |"));
    }
}
