//! Pages of given figures.

use super::draw::{SpeedHistory, cut, lines, sparkline};
use super::metrics::ScrapedMetrics;
use super::view::{TopView, phases};
use super::{arrived, page};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const BEFORE: &str = "latent_generated_tokens_total 100\nlatent_prompt_tokens_total 1000\nlatent_steps_total 10\n\
latent_first_token_seconds_total 1\nlatent_first_tokens_total 2\nlatent_token_gap_seconds_total 1\nlatent_token_gaps_total 90\n";

const NOW: &str = "latent_ready 1\nlatent_uptime_seconds 7500\nlatent_requests_running 12\nlatent_requests_in_prompt 2\n\
latent_requests_waiting 3\nlatent_waiting_tokens 12345\nlatent_batch_decoding 10\nlatent_batch_prompt_tokens 512\n\
latent_last_step_seconds 0.0342\nlatent_generated_tokens_total 350\nlatent_prompt_tokens_total 3000\nlatent_steps_total 60\n\
latent_first_token_seconds_total 2\nlatent_first_tokens_total 4\nlatent_token_gap_seconds_total 3\nlatent_token_gaps_total 190\n\
latent_kv_blocks{state=\"used\"} 50\nlatent_kv_blocks{state=\"cached\"} 25\nlatent_kv_blocks{state=\"free\"} 25\nlatent_kv_block_tokens 64\n\
latent_states_used 6\nlatent_states 24\nlatent_state_bytes 41943040\n\
latent_prefix_hits_total 8\nlatent_prefix_lookups_total 10\nlatent_prefix_tokens_saved_total 54321\nlatent_prefix_evicted_total 0\n\
latent_jobs_total{state=\"finished\"} 100\nlatent_jobs_total{state=\"refused\"} 2\nlatent_jobs_total{state=\"cancelled\"} 1\n\
latent_jobs_total{state=\"failed\"} 0\nlatent_preemptions_total 3\n";

fn view() -> TopView {
    TopView::new(&ScrapedMetrics::parse(NOW), Some((&ScrapedMetrics::parse(BEFORE), Duration::from_secs(2))))
}

#[test]
fn the_page_shows_the_metrics() {
    let mut view = view();
    view.phases = phases(
        r#"{"phases": [{"name": "small", "share": 0.1, "microseconds": 10}, {"name": "attend\u001b[2J", "share": 0.9, "microseconds": 90.4}, {"name": 7}]}"#,
    );
    let lines = page(Some(&view), None, "http://h:1", &SpeedHistory::default(), (80, 24));
    assert_eq!(lines.len(), 24);
    let text = lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n");
    let expected = "\
latent top  http://h:1  up 2 h 5 min

requests   12 running (2 read their prompt), 3 waiting (12.3 k tokens)
batch      10 decode, 512 prompt tokens, 34.2 ms a step, 25.0 steps/s
generated     125.0 tokens/s
prompt       1000.0 tokens/s
latency    first token after 500.0 ms, then one every 20.0 ms
KV cache   ██████████████████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒···············
           █ 50 used  ▒ 25 cached  · 25 free blocks of 64 tokens
states     6 of 24 in use, snapshots included, 41.94 MB each
prefixes   8 of 10 hit (80 %), 54.3 k tokens saved, 0 evicted
answers    100 finished, 2 refused, 1 cancelled, 0 failed, 3 preempted

phases of a step
  attend\\u{1b}[2J                  90 %        90 µs ████████████████████████
  small                            10 %        10 µs ███
";
    assert_eq!(text.split("\n\n\n").next().unwrap().trim_end(), expected.trim_end(), "{text}");
    assert!(text.ends_with("q leaves"));
}

#[test]
fn several_models_have_a_line_each_and_nothing_is_counted_twice() {
    let page_of = |tokens: u32, steps: u32| {
        let model = |name: &str, loaded: u32, running: u32, tokens: u32, steps: u32, free: u32| {
            format!(
                "latent_model_loaded{{model=\"{name}\"}} {loaded}\nlatent_requests_running{{model=\"{name}\"}} {running}\n\
                 latent_requests_waiting{{model=\"{name}\"}} 0\nlatent_generated_tokens_total{{model=\"{name}\"}} {tokens}\n\
                 latent_steps_total{{model=\"{name}\"}} {steps}\nlatent_step_seconds_total{{model=\"{name}\"}} {}\n\
                 latent_kv_blocks{{model=\"{name}\",state=\"used\"}} 0\nlatent_kv_blocks{{model=\"{name}\",state=\"cached\"}} 0\n\
                 latent_kv_blocks{{model=\"{name}\",state=\"free\"}} {free}\nlatent_kv_block_tokens{{model=\"{name}\"}} {}\n",
                f64::from(steps) / 50.0,
                64 * loaded
            )
        };
        let long = "a-model-whose-name-is-longer-than-what-there-is";
        [model("small", 1, 2, tokens, steps, 8), model(long, 1, 0, 0, 0, 4), model("big", 0, 0, 0, 0, 0)]
            .concat()
    };
    let (before, now) = (ScrapedMetrics::parse(&page_of(100, 10)), ScrapedMetrics::parse(&page_of(350, 60)));
    let view = TopView::new(&now, Some((&before, Duration::from_secs(2))));
    let lines = page(Some(&view), None, "http://h", &SpeedHistory::default(), (80, 24));
    let text = lines.join("\n");
    for said in [
        "20.0 ms a step, 25.0 steps/s",
        "12 free blocks of 64 tokens",
        "\nmodels\n",
        "\n  small                               2 running,   0 waiting    125.0 tokens/s\n",
        "\n  a-model-whose-name-is-longer-th…    0 running,   0 waiting      0.0 tokens/s\n",
        "\n  big                               not loaded\n",
    ] {
        assert!(text.contains(said), "no {said:?} in {text}");
    }
    assert_eq!(view.json("u")["models"][0]["per_second"]["generated_tokens"], 125.0);
    // Nothing runs, and no model is loaded yet.
    let nothing = page_of(0, 0).replace(" 2\n", " 0\n").replace(" 8\n", " 0\n").replace(" 4\n", " 0\n");
    let nothing = ScrapedMetrics::parse(&nothing);
    let view = TopView::new(&nothing, Some((&nothing, Duration::from_secs(1))));
    let text = page(Some(&view), None, "http://h", &SpeedHistory::default(), (80, 24)).join("\n");
    assert!(text.contains("batch      idle\n") && text.contains("KV cache   no model is loaded\n"), "{text}");
}

#[test]
fn every_size_and_missing_value_has_a_page() {
    for text in ["latent_x 1", "llamacpp:requests_processing 2", NOW] {
        let view = TopView::new(&ScrapedMetrics::parse(text), None);
        for columns in [1, 7, 20, 79, 80, 300] {
            for rows in [1, 2, 3, 10, 24] {
                let trouble = (rows == 10).then_some("cannot reach\u{1b} it");
                let lines = page(Some(&view), trouble, "http://h", &SpeedHistory::default(), (columns, rows));
                assert!(rows <= 2 || lines.len() == rows);
                assert!(lines.iter().all(|line| !line.contains('\u{1b}') && cut(line, columns).chars().count() <= columns));
            }
        }
    }
    let llama = TopView::new(
        &ScrapedMetrics::parse("llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"),
        None,
    );
    assert!(
        page(Some(&llama), None, "u", &SpeedHistory::default(), (80, 24))[2].contains("2 running, 1 waiting")
    );
}

#[test]
fn phases_fill_the_terminal_but_do_not_exceed_it() {
    let mut view = view();
    view.phases = phases(&format!(
        r#"{{"phases": [{{"name": "{}", "share": 1.0, "microseconds": 123456789}}]}}"#,
        "name".repeat(20)
    ));
    for columns in [60, 80, 91, 92, 93, 120] {
        let lines = lines(&view, &SpeedHistory::default(), columns);
        let phase = lines.last().unwrap();
        // The bar has at most 40 columns.
        assert_eq!(phase.chars().count(), columns.min(93), "{columns} columns: {phase}");
    }
}

#[test]
fn the_end_of_the_reading_thread_is_an_error() {
    let (sender, readings) = sync_channel(1);
    assert!(arrived(&readings).unwrap().is_none());
    sender.send(Err(anyhow::anyhow!("no server"))).unwrap();
    drop(sender);
    // The last reading is still shown.
    assert!(arrived(&readings).unwrap().unwrap().is_err());
    let error = arrived(&readings).err().unwrap().to_string();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn a_restarted_server_shows_no_negative_speed() {
    let (before, now) = (ScrapedMetrics::parse(NOW), ScrapedMetrics::parse(BEFORE));
    let view = TopView::new(&now, Some((&before, Duration::from_secs(1))));
    assert_eq!((view.token_rate, view.gap, view.first_token), (None, None, None));
    let view = TopView::new(&before, Some((&before, Duration::ZERO)));
    assert_eq!(view.token_rate, None);
}

#[test]
fn bars_follow_the_largest_value() {
    assert_eq!(sparkline(&[0.0, 1.0, 4.0, 8.0].into(), 10), "▁▂▅█");
    assert_eq!(sparkline(&[9.0, 0.0, 0.0].into(), 2), "▁▁");
}
