# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = "audioproxy-urls"
  spec.version = "0.1.0"
  spec.summary = "Builds and signs URLs of audioproxy, and refuses what the service refuses"
  spec.authors = ["the audioproxy authors"]
  spec.license = "MIT"
  spec.required_ruby_version = ">= 3.0"
  spec.files = Dir.chdir(__dir__) { Dir["lib/**/*.rb", "README.md", "LICENSE"] }
  spec.metadata["rubygems_mfa_required"] = "true"
end
