# frozen_string_literal: true

# Enqueues jobs with Sidekiq.
#
#   ruby produce.rb one N      N no-ops one after the other; print the rate
#   ruby produce.rb stamps N   N jobs that record their latency, one every 20 to 60 ms
#   ruby produce.rb version

require_relative "jobs"

command, number = ARGV
jobs = Integer(number || "0")

case command
when "one"
  Noop.perform_async # connects
  started = now
  (jobs - 1).times { Noop.perform_async }
  puts (jobs - 1) / ((now - started) / 1e9)
when "stamps"
  jobs.times do
    sleep(rand(0.02..0.06))
    Stamp.perform_async(now)
  end
when "version"
  puts "#{Sidekiq::VERSION}, Ruby #{RUBY_VERSION}"
else
  abort "unknown command #{command}"
end
