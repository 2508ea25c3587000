# frozen_string_literal: true

# Answers the calls of tests/urls/calls.py with the client in Ruby.

require "json"
require_relative "../../../examples/clients/ruby/lib/audioproxy/urls"

def raw(value)
  return value unless value.is_a?(Hash) && value.key?(:base64url)

  (value[:base64url] + "=" * (-value[:base64url].size % 4)).tr("-_", "+/").unpack1("m0")
end

def answer(call:, signer: nil, **values)
  case call
  when "read"
    variant = Audioproxy::Variant.read(values[:segments])
    "#{variant.canonical} #{variant.content_type}"
  when "local", "s3", "https", "read_source"
    bytes = Audioproxy.public_send(call, *values[:arguments].map { |value| raw(value) }).canonical
    [bytes].pack("m0").tr("+/", "-_").delete("=")
  when "from_env"
    Audioproxy::Signer.from_env(values[:environ].transform_keys(&:to_s)).sign("/")
  else
    key, salt = signer.values_at(:key, :salt).map { |digits| [digits].pack("H*") }
    options = { encoded: signer[:encoded], now: -> { signer[:now] } }
    made = Audioproxy::Signer.new(key, salt, signer[:base], **options)
    positional = [values.delete(:path) || raw(values.delete(:source))]
    positional << Audioproxy::Variant.new(**values.delete(:variant)) if values.key?(:variant)
    made.public_send(call, *positional, **values)
  end
end

answers = JSON.parse($stdin.read, symbolize_names: true).map do |call|
  { text: answer(**call) }
rescue ArgumentError, TypeError => e
  refusal = e.respond_to?(:code) ? { code: e.code, status: e.status } : {}
  { message: e.message, **refusal }
end
puts JSON.generate(answers)
