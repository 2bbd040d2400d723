//! The OpenAPI document.

use crate::support::demo;
use latent_server::openapi_document;

#[test]
fn the_committed_document_is_the_served_one() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let made = serde_json::to_string_pretty(&openapi_document()).unwrap() + "\n";
    if std::env::var_os("LATENT_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "docs/openapi.json is out of date: run this test with LATENT_WRITE_OPENAPI=1");
    let served = demo().get("/openapi.json").ok();
    assert_eq!(served, openapi_document());
    // Every reference has a target.
    for (_, operations) in served["paths"].as_object().unwrap() {
        for (_, operation) in operations.as_object().unwrap() {
            if let Some(reference) =
                operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str()
            {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(served.pointer(pointer).is_some(), "{reference}");
            }
        }
    }
}
